"""Attention contracts on literal rows: the right values are allowed, those of known kinds of fault are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import contract.kernels.attention
import contract.kernels.attn_gate
import contract.kernels.decode_attention
import contract.kernels.kv_append
from contract import formats
from contract.autocontrols import changes
from contract.case import Kernel, find, make_case, shape_from
from contract.kernels.kv_append import kv_append_int8_torch
from contract.ranges import case_range, option_sets

assert contract.kernels.attention.attention.name == "attention"
NAN, INF = np.nan, np.inf


def refused(
    kernel: Kernel,
    inputs: Mapping[str, Any],
    out: Any,
    scalars: Mapping[str, float] | None = None,
    name: str = "out",
    **options: str,
) -> int:
    """How many values of an output are not allowed, after rounding to its format."""
    arrays = {key: np.asarray(x) for key, x in inputs.items()}
    case = make_case(
        kernel, shape_from(kernel, {k: x.shape for k, x in arrays.items()}), arrays, scalars
    )
    allowed = case_range(kernel, case, {**option_sets(kernel)[0], **options})[name]
    values = np.broadcast_to(np.asarray(out, np.float64), allowed.lo.shape)
    return int(
        allowed.refused(formats.encode(formats.round_to(values, allowed.fmt), allowed.fmt)).sum()
    )


def column(values: Any) -> Any:
    """(keys, 1, 1) of one value a key."""
    return np.asarray(values, np.float64).reshape(-1, 1, 1)


def equal(keys: int, own: list[int], **more: Any) -> dict[str, Any]:
    """Queries at `own` whose scores are all 0, over keys with v = 2^key."""
    return {
        "q": np.zeros((len(own), 1, 1)),
        "k": np.ones((keys, 1, 1)),
        "v": column(2.0 ** np.arange(keys)),
        "start": np.zeros(len(own)),
        "position": np.array(own),
        **more,
    }


def test_the_last_query_sees_every_key_where_fewer_queries_than_keys_come_in() -> None:
    kernel, inputs = find("attention", "eager"), equal(5, [3, 4])
    # weights are rounded before they meet v
    last = 31 * float(formats.round_to(np.array(1 / 5), "bf16"))
    assert refused(kernel, inputs, column([3.75, last])) == 0
    assert refused(kernel, inputs, column([1.0, 1.5])) == 2
    assert refused(kernel, inputs, column([last, last])) == 1


def test_a_window_of_three_is_the_own_key_and_two_before_it() -> None:
    inputs = equal(6, list(range(6)), window=3, cap=1.5)
    kernel = find("attention", "eager_capped", {"mask": "sliding", "capped": "yes"})
    thirds = float(formats.round_to(np.array(1 / 3), "bf16"))
    right = [1, 1.5, *(thirds * (7 * 2.0**k) for k in range(4))]
    assert refused(kernel, inputs, column(right)) == 0
    one_less = [1, 1.5, 3, 6, 12, 24]
    assert refused(kernel, inputs, column(one_less)) == 4
    quarter = [1, 1.5, 7 * thirds, 3.75, 7.5, 15]
    assert refused(kernel, inputs, column(quarter)) == 3


def test_an_image_sees_all_of_itself_that_is_in_the_window() -> None:
    kernel = find("attention", "eager", {"mask": "image_block"})
    inputs = equal(6, [2], window=2, block=np.array([0, 1, 1, 1, 0, 0]))
    # keys 1 .. 3: itself, the one before, and the image's next one
    third = float(formats.round_to(np.array(1 / 3), "bf16"))
    assert refused(kernel, inputs, 14 * third) == 0
    assert refused(kernel, inputs, 3.0) == 1


def test_a_prefix_is_seen_by_all_of_it() -> None:
    kernel = find("attention", "sdpa", {"mask": "prefix"})
    inputs = equal(4, [0, 3], prefix=np.array([2, 2]))
    assert refused(kernel, inputs, column([1.5, 3.75])) == 0
    assert refused(kernel, inputs, column([1.0, 3.75])) == 1


def test_neighbouring_query_heads_share_a_key_head() -> None:
    inputs = {
        "q": np.zeros((1, 4, 2)),
        "k": np.ones((2, 2, 2)),
        "v": np.stack([np.full((2, 2), 1.0), np.full((2, 2), 10.0)], 1),
        "start": np.zeros(1),
    }
    kernel = find("attention", "sdpa", {"mask": "full"})
    right = np.array([[[1, 1], [1, 1], [10, 10], [10, 10]]])
    assert refused(kernel, inputs, right) == 0
    assert refused(kernel, inputs, right[:, [0, 2, 1, 3]]) == 4
    assert refused(kernel, inputs, np.ones((1, 4, 2))) == 4


def test_a_dead_key_weighs_nothing_however_low_the_live_scores_are() -> None:
    kernel = find("attention", "eager")
    inputs = {
        "q": np.ones((1, 1, 1)),
        "k": column([-29952.0, 0.0]),
        "v": column([2.0, 50.0]),
        "start": np.zeros(1),
        "position": np.zeros(1),
    }
    assert refused(kernel, inputs, 2.0) == 0
    # a fill of -1e4, and no mask
    assert refused(kernel, inputs, 50.0) == 1
    assert refused(kernel, inputs, 0.0) == 1


@pytest.mark.parametrize(("empty", "value"), [("zeros", 0.0), ("nan", NAN), ("mean", 26.0)])
def test_a_row_without_a_key_is_the_stated_convention(empty: str, value: float) -> None:
    inputs = equal(2, [0], start=np.ones(1))
    inputs["v"] = column([2.0, 50.0])
    for kernel in (find("attention", "eager"), find("attention", "sdpa", {"mask": "prefix"})):
        given = inputs if kernel.profile.name == "eager" else {**inputs, "prefix": np.zeros(1)}
        for other in (0.0, NAN, 26.0, 50.0):
            same = value == other or (np.isnan(value) and np.isnan(other))
            assert refused(kernel, given, other, empty=empty) == (not same), (kernel.id, other)
    lse = refused(
        find("attention", "sdpa", {"mask": "prefix"}),
        {**inputs, "prefix": np.zeros(1)},
        INF,
        name="lse",
    )
    assert lse == 1


def test_the_cap_comes_before_the_mask() -> None:
    kernel = find("attention", "eager_capped", {"mask": "sliding", "capped": "yes"})
    inputs = {
        "q": np.ones((1, 1, 1)),
        "k": column([0.0, 24.0, 40.0]),
        "v": column([1.0, 100.0, 10000.0]),
        "start": np.zeros(1),
        "position": np.zeros(1),
        "window": 3,
        "cap": 1.0,
    }
    assert refused(kernel, inputs, 1.0) == 0
    for weights in (np.exp([0.0, -1.0, -1.0]), np.exp(np.tanh([0.0, 3.0, 5.0]))):
        assert refused(kernel, inputs, weights / weights.sum() @ [1.0, 100.0, 10000.0]) == 1


def test_unused_slots_never_reach_the_output() -> None:
    kernel = find("decode_attention")
    scores, v = np.array([0.5, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])
    inputs = {
        "q": np.full((1, 1, 1), 8.0),
        "k": np.array([*scores, NAN, INF]).reshape(1, 5, 1, 1),
        "v": np.array([*v, NAN, -INF]).reshape(1, 5, 1, 1),
        "length": np.array([3]),
    }
    weights = np.exp(scores)
    # against the maximum they are rounded before they meet v
    rounded = formats.round_to(np.exp(scores - 2.0), "bf16")
    right, scale = rounded @ v / np.exp(scores - 2.0).sum(), {"scale": 0.125}
    assert refused(kernel, inputs, right, scale) == 0
    assert refused(kernel, inputs, np.log(weights.sum()), scale, name="lse") == 0
    for wrong in (NAN, 4.5, 5.0, 0.0):
        assert refused(kernel, inputs, wrong, scale) == 1
    for wrong in (np.log2(weights.sum()), NAN, INF):
        assert refused(kernel, inputs, wrong, scale, name="lse") == 1


def test_an_empty_cache_gives_zeros_and_minus_infinity() -> None:
    kernel = find("decode_attention")
    inputs = {
        "q": np.ones((1, 1, 1)),
        "k": np.full((1, 2, 1, 1), NAN),
        "v": np.full((1, 2, 1, 1), NAN),
        "length": np.array([0]),
    }
    assert refused(kernel, inputs, 0.0) == 0
    assert refused(kernel, inputs, NAN) == 1
    assert refused(kernel, inputs, -INF, name="lse") == 0
    assert refused(kernel, inputs, 0.0, name="lse") == 1


def test_exactly_one_slot_is_written() -> None:
    cache = np.arange(6.0).reshape(1, 3, 1, 2)
    inputs = {"cache": cache, "new": np.array([[[9.0, -0.0]]]), "position": np.array([7])}
    kernel = find("kv_append", None, {"ring": "yes"})
    right = np.array([0.0, 1.0, 9.0, -0.0, 4.0, 5.0]).reshape(cache.shape)
    assert refused(kernel, inputs, right, name="cache") == 0
    assert refused(kernel, inputs, right + 0.0, name="cache") == 1
    assert refused(kernel, inputs, np.roll(right, 2, 1), name="cache") > 0
    assert refused(kernel, inputs, cache, name="cache") == 2


def test_codes_are_rounded_to_even_and_end_at_127() -> None:
    inputs = {
        "cache": np.full((1, 2, 1, 4), 5.0),
        "new": np.array([[[0.5, 1.5, -100.0, 0.625]]]) * 2.0,
        "slot": np.array([1]),
    }
    kernel, right = find("kv_append_int8"), np.full((1, 2, 1, 4), 5.0)
    right[0, 1, 0] = [0, 2, -100, 1]
    assert refused(kernel, inputs, right, {"scale": 2.0}, name="cache") == 0
    right[0, 1, 0] = [1, 2, -100, 1]
    assert refused(kernel, inputs, right, {"scale": 2.0}, name="cache") == 1
    right[0, 1, 0] = [32, 96, -127, 40]
    assert refused(kernel, inputs, right, {"scale": 0.03125}, name="cache") == 0
    right[0, 1, 0, 2] = -128
    assert refused(kernel, inputs, right, {"scale": 0.03125}, name="cache") == 1


def test_a_scale_that_is_not_positive_is_refused() -> None:
    for scale in (0.0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="positive, finite scale"):
            kv_append_int8_torch(
                torch.zeros(1, 1, 1, 1, dtype=torch.int8),
                torch.zeros(1, 1, 1),
                torch.zeros(1),
                scale=scale,
            )


def test_the_gate_is_the_second_half_of_the_fused_row() -> None:
    kernel = find("attn_gate")
    inputs = {"o": np.full((1, 1, 1), 3.0), "fused": np.array([[[40.0, 0.0]]])}
    assert refused(kernel, inputs, 1.5) == 0
    assert refused(kernel, inputs, 3.0) == 1


def test_what_is_declared_vacuous_is_no_rounding() -> None:
    """bf16 rows are moved into a bf16 cache, and the log-sum-exp's own width is more than an ulp."""
    assert set(changes(find("kv_append"))) == {"truncate-stored"}
    kernel = find("decode_attention")
    rng = np.random.default_rng(1)
    inputs = {"q": rng.standard_normal((8, 1, 4)), "k": rng.standard_normal((8, 6, 1, 4)),
              "v": rng.standard_normal((8, 6, 1, 4)), "length": np.full(8, 6)}  # fmt: skip
    case = make_case(kernel, shape_from(kernel, {k: x.shape for k, x in inputs.items()}), inputs)
    lse = case_range(kernel, case)["lse"]
    assert (lse.hi - lse.lo >= 2).all()
