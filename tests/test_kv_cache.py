"""A cache keeps what it is given, one slot a position, and shows which slots a step changed."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from contract.calls import Call
from contract.case import find
from contract.errors import CaseError
from contract.pipelines.cache import CacheError, Form, KVCache, Snapshot
from contract.pipelines.gates import skip_call
from contract.pipelines.guard import KernelsOnly
from contract.verify import implementation_of, load_suites

LAYERS, KV, D = 3, 2, 4


def kernel_of(name: str, **parameters: str) -> Call:
    """As contract.verified() gives it, without its verification."""
    load_suites()
    kernel = find(name, None, parameters)
    return Call(kernel, implementation_of(kernel, "torch"))


@pytest.fixture(scope="module")
def form() -> Form:
    return Form(torch.bfloat16, kernel_of("kv_append", store="bf16", ring="no"))


def rows(count: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(count, KV, D, generator=torch.Generator().manual_seed(seed))
    return made.to(torch.bfloat16)


def fill(cache: KVCache, keys: torch.Tensor, sequence: int = 0) -> None:
    """The same rows in every layer; values are the keys' negative."""
    for layer in range(LAYERS):
        cache.extend(layer, keys, -keys, sequence)


def test_what_is_appended_is_what_is_used(form: Form) -> None:
    cache, x = KVCache(LAYERS, 8, KV, D, form), rows(8)
    fill(cache, x[:5])
    for layer in range(LAYERS):
        cache.append(layer, x[5:6], -x[5:6])
    fill(cache, x[6:])
    assert cache.length() == 8
    for layer in range(LAYERS):
        keys, values = cache.used(layer)
        assert torch.equal(keys, x)
        assert torch.equal(values, -x)
        assert cache.positions(layer) == list(range(8))
        assert cache.lengths(layer).tolist() == [8]
        assert cache.lengths(layer).dtype == torch.int32


def test_slots_that_hold_nothing_are_poisoned(form: Form) -> None:
    cache = KVCache(LAYERS, 8, KV, D, form)
    fill(cache, rows(3))
    keys, values = cache.slots(0)
    assert keys.shape == (1, 8, KV, D)
    assert keys[:, 3:].isnan().all()
    assert values[:, 3:].isnan().all()
    assert not keys[:, :3].isnan().any()
    codes = KVCache(
        1, 2, KV, D, Form(torch.int8, form.append), Form(torch.float8_e4m3fn, form.append)
    )
    assert (codes.slots(0)[0] == -128).all()
    assert codes.slots(0)[1].float().isnan().all()


def test_exactly_one_slot_changes_in_a_step(form: Form) -> None:
    cache = KVCache(LAYERS, 8, KV, D, form)
    fill(cache, rows(3))
    before = cache.snapshot()
    assert cache.slots_changed(before) == {}
    # a row of zeros is a change too
    fill(cache, torch.zeros(1, KV, D, dtype=torch.bfloat16))
    everywhere = [(layer, part) for layer in range(LAYERS) for part in ("keys", "values")]
    assert cache.slots_changed(before) == {(0, 3): everywhere}
    cache.slots(1)[1][0, 0, 1, 2] = -0.0
    cache.slots(2)[0][0, 7] = 1.0
    found = cache.slots_changed(before)
    assert found == {(0, 0): [(1, "values")], (0, 3): everywhere, (0, 7): [(2, "keys")]}


def test_a_sign_of_zero_is_a_change(form: Form) -> None:
    cache = KVCache(LAYERS, 2, KV, D, form)
    fill(cache, torch.zeros(1, KV, D, dtype=torch.bfloat16))
    before = cache.snapshot()
    cache.slots(0)[0][0, 0, 0, 0] = -0.0
    assert cache.slots_changed(before) == {(0, 0): [(0, "keys")]}


def test_a_stale_slot_is_seen(form: Form) -> None:
    stale = Form(torch.bfloat16, skip_call(form.append, 2 * LAYERS + 3))
    cache = KVCache(LAYERS, 8, KV, D, stale)
    fill(cache, rows(3))
    before = cache.snapshot()
    fill(cache, rows(1))
    assert (1, "values") not in cache.slots_changed(before)[0, 3]
    assert len(cache.slots_changed(before)[0, 3]) == 2 * LAYERS - 1


def test_a_snapshot_is_restored_bit_for_bit(form: Form) -> None:
    cache = KVCache(LAYERS, 4, KV, D, form, limit=16)
    fill(cache, rows(3))
    before = cache.snapshot()
    fill(cache, rows(9, seed=1))
    grown = cache.snapshot()
    assert sorted(cache.slots_changed(before)) == [(0, slot) for slot in range(3, 12)]
    cache.restore(before)
    assert (cache.length(), cache.capacity) == (3, 4)
    assert cache.slots_changed(before) == {}
    with pytest.raises(CacheError, match="the snapshot has 16 slots, the cache 4"):
        cache.slots_changed(grown)
    fill(cache, rows(1, seed=2))
    # what is appended does not reach the snapshot
    assert before.keys[:, :, 3].isnan().all()
    cache.restore(grown)
    assert torch.equal(cache.used(2)[0][3:], rows(9, seed=1))
    other = KVCache(LAYERS, 4, KV, D + 1, form).snapshot()
    for wrong in (other, Snapshot(grown.keys.float(), grown.values, grown.lengths)):
        with pytest.raises(CacheError, match="give a snapshot of this cache"):
            cache.restore(wrong)


def test_a_full_cache_doubles_up_to_its_limit(form: Form) -> None:
    cache, x = KVCache(LAYERS, 2, KV, D, form, limit=9), rows(9)
    capacities = []
    for i in range(9):
        fill(cache, x[i : i + 1])
        capacities.append(cache.capacity)
    assert capacities == [2, 2, 4, 4, 8, 8, 8, 8, 9]
    assert torch.equal(cache.used(1)[0], x)
    before = cache.snapshot()
    for write in (cache.append, cache.extend):
        with pytest.raises(CacheError, match="position 9 has no slot: the cache holds 9"):
            write(0, x[:1], x[:1])
    assert cache.slots_changed(before) == {}
    whole = KVCache(LAYERS, 2, KV, D, form, limit=9)
    fill(whole, x)
    assert whole.capacity == 9


def test_sequences_of_other_lengths_side_by_side(form: Form) -> None:
    cache = KVCache(LAYERS, 8, KV, D, form, sequences=3)
    for sequence, count in enumerate((2, 0, 5)):
        fill(cache, rows(count, seed=sequence), sequence)
    before, new = cache.snapshot(), rows(3, seed=9)
    for layer in range(LAYERS):
        cache.append(layer, new, -new)
    assert [cache.length(s) for s in range(3)] == [3, 1, 6]
    assert sorted(cache.slots_changed(before)) == [(0, 2), (1, 0), (2, 5)]
    assert torch.equal(cache.used(0, 2)[0][5], new[2])
    assert cache.lengths(0).tolist() == [3, 1, 6]


@pytest.mark.parametrize("chunks", [[1] * 11, [11], [3, 4, 4], [6, 5]])
def test_a_ring_keeps_the_last_positions(form: Form, chunks: list[int]) -> None:
    cache, x, at = KVCache(LAYERS, 4, KV, D, form, ring=True), rows(11), 0
    for count in chunks:
        fill(cache, x[at : at + count])
        at += count
        held = cache.positions(0)
        assert sorted(held) == list(range(max(0, at - 4), at))
        assert [position % 4 for position in held] == list(range(len(held)))
        assert torch.equal(cache.used(2)[0], x[held])
        assert torch.equal(cache.used(2)[1], -x[held])
    before = cache.snapshot()
    fill(cache, x[:1])
    assert list(cache.slots_changed(before)) == [(0, 11 % 4)]
    with pytest.raises(CacheError, match="its ring has overwritten the oldest"):
        cache.truncate(10)


def test_layers_at_different_positions_are_told_and_truncated(form: Form) -> None:
    cache, x = KVCache(LAYERS, 8, KV, D, form), rows(4)
    fill(cache, x[:3])
    cache.append(0, x[3:], x[3:])
    with pytest.raises(CacheError, match=r"layers hold from 3 to 4 positions; .*truncate"):
        cache.length()
    with pytest.raises(CacheError, match=r"truncate\(4\) of a sequence of 3"):
        cache.truncate(4)
    cache.truncate(2)
    assert cache.length() == 2
    fill(cache, x[3:])
    assert torch.equal(cache.used(0)[0], x[[0, 1, 3]])


def test_keys_and_values_of_different_forms() -> None:
    codes = functools.partial(kernel_of("kv_append_int8", ring="no"), scale=0.5)
    half = Form(torch.float16, kernel_of("kv_append", store="fp16", ring="no"))
    cache = KVCache(1, 4, KV, D, Form(torch.int8, codes), half)
    x = torch.full((1, KV, D), 3.0, dtype=torch.bfloat16)
    cache.append(0, x, x)
    assert (cache.used(0)[0].unique().tolist(), cache.used(0)[1].unique().tolist()) == ([6], [3.0])
    assert cache.used(0)[1].dtype == torch.float16


def test_rows_are_written_by_the_kernel_alone(form: Form) -> None:
    cache, x = KVCache(LAYERS, 2, KV, D, form, limit=8), rows(3)
    with KernelsOnly():
        for layer in range(LAYERS):
            cache.extend(layer, x, x)
        before = cache.snapshot()
        cache.append(0, x[:1], x[:1])
        assert len(cache.slots_changed(before)) == 1
        cache.restore(before)
        with pytest.raises(CaseError, match="new has dtype float32"):
            cache.append(0, torch.zeros(1, KV, D), torch.zeros(1, KV, D))
    calls: list[Any] = []
    idle = KVCache(1, 2, KV, D, Form(torch.bfloat16, lambda **named: calls.append(named)))
    idle.append(0, rows(1), rows(1))
    assert len(calls) == 2
    assert idle.used(0)[0].isnan().all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 0}, "layers=0"),
        ({"capacity": -1}, "capacity=-1"),
        ({"limit": 3}, "limit=3; give a limit of 4 or more"),
        ({"limit": 8, "ring": True}, "none for a ring"),
        ({"d": 1 << 60}, "has no room in memory"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(form: Form, change: dict[str, Any], said: str) -> None:
    sizes: dict[str, Any] = {"layers": LAYERS, "capacity": 4, "kv_heads": KV, "d": D, "keys": form}
    with pytest.raises(CacheError, match=said):
        KVCache(**{**sizes, **change})


def test_as_many_values_as_keys(form: Form) -> None:
    with pytest.raises(CacheError, match="2 keys and 1 values"):
        KVCache(LAYERS, 4, KV, D, form).extend(0, rows(2), rows(1))
