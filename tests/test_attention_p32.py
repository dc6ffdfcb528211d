"""Weights in two halves on literal rows: 16 bits, stretches of keys, chunks that are merged, what no input shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from literal import refused, shown

import contract.controls.attention_p32
from contract import formats
from contract.case import find
from contract.kernels.attention_p32 import attention_p32_torch, merged
from contract.readings.base import Change

assert contract.controls.attention_p32.NAME == "attention_p32"
NAME = "attention_p32"


def bf16(x: Any) -> Any:
    return formats.round_to(np.asarray(x, np.float64), "bf16")


def rows(scores: Any, v: Any, **more: Any) -> dict[str, Any]:
    """One query of one head, whose score with key j is scores[j]; all keys are seen unless said otherwise."""
    keys = len(scores)
    return {
        "q": np.ones((1, 1, 1)),
        "k": np.asarray(scores, np.float64).reshape(keys, 1, 1),
        "v": np.asarray(v, np.float64).reshape(keys, 1, 1),
        "first": np.zeros(1),
        "last": np.full(1, keys - 1),
        **more,
    }


def halves(e: float) -> float:
    return float(bf16(e) + bf16(e - bf16(e)))


# a score of 16 bits: one of 8 gives a result that lies next to a bf16 value, far from a tie
Q = 129.0 / 128.0


def told_apart(x: float) -> bool:
    """Whether the 16th bit of exp(-x) decides the result of a difference of weights."""
    e = np.exp(-x)
    return bool(bf16((1 - halves(e)) / (1 + e)) != bf16((1 - e) / (1 + e)))


TELLING = [
    k for k in np.outer([1, 2, 4, 8], np.arange(128, 256)).ravel() * 2.0**-17 if told_apart(Q * k)
]


def test_nearly_equal_weights_cancel_to_their_sixteenth_bit() -> None:
    """Two keys with v = 1 and -1: what is left is (1 - p) / (1 + e), and bf16 weights leave 0 or another multiple of 2^-9."""
    assert len(TELLING) > 1
    told = 0
    for k in TELLING:
        e = np.exp(-Q * k)
        inputs = rows([0.0, -k], [1.0, -1.0], q=np.full((1, 1, 1), Q))
        right, unrounded, one_half = ((1 - p) / (1 + e) for p in (halves(e), e, float(bf16(e))))
        assert refused(NAME, inputs, right) == {"out": 0}
        assert refused(NAME, inputs, one_half) == {"out": 1}
        told += refused(NAME, inputs, unrounded)["out"]
    assert told > 0


def test_a_query_sees_the_keys_from_its_first_to_its_last() -> None:
    inputs = rows(np.zeros(6), 2.0 ** np.arange(6), first=np.full(1, 1), last=np.full(1, 2))
    assert refused(NAME, inputs, 3.0) == {"out": 0}
    for wrong in (2.0, 4.0, 14 / 3, 7 / 3, 10.5):
        assert refused(NAME, inputs, wrong) == {"out": 1}


def test_a_row_without_a_key_is_zeros_and_minus_infinity() -> None:
    inputs = rows(np.zeros(3), [1.0, 2.0, 4.0], first=np.full(1, 2), last=np.full(1, 0))
    assert refused(NAME, inputs, {"out": 0.0, "lse": -np.inf}) == {"out": 0, "lse": 0}
    for out, lse in ((np.nan, np.nan), (7 / 3, np.log(3.0)), (0.0, 0.0), (0.0, np.inf)):
        assert sum(refused(NAME, inputs, {"out": out, "lse": lse}).values()) > 0


def test_parts_of_two_chunks_merge_to_one_softmax() -> None:
    """Scores 0.5 and 3 before the edge of a chunk, -1 and 6 behind it, all else dead; 2-based exponents give 937."""
    scores = np.full(300, -120.0)
    scores[[254, 255, 256, 257]] = [0.5, 3.0, -1.0, 6.0]
    v = np.ones(300)
    v[[254, 255, 256, 257]] = [1.0, 10.0, 100.0, 1000.0]
    inputs = rows(scores, v, first=np.full(1, 254), last=np.full(1, 257))
    s = scores[254:258]
    right = {"out": 948.622194, "lse": 6.05333764}
    assert refused(NAME, inputs, right) == {"out": 0, "lse": 0}
    parts = [np.log(np.exp(half).sum()) for half in (s[:2], s[2:])]
    means = [np.exp(a) @ b / np.exp(a).sum() for a, b in ((s[:2], [1, 10]), (s[2:], [100, 1000]))]
    w = np.exp(np.array(parts) / np.log(2.0))
    base_two = {"out": w @ means / w.sum(), "lse": np.log(w.sum())}
    units = {"out": right["out"], "lse": right["lse"] / np.log(2.0)}
    assert refused(NAME, inputs, base_two) == {"out": 1, "lse": 1}
    assert refused(NAME, inputs, units) == {"out": 0, "lse": 1}


def test_an_empty_part_leaves_the_other_one_as_it_is() -> None:
    """Both ways round, and two of them stay empty: no NaN from -inf - -inf."""
    some = torch.tensor([[1.5]]), torch.tensor([[2.0]]), torch.tensor([[6.0, 8.0]])
    none = torch.tensor([[-torch.inf]]), torch.tensor([[0.0]]), torch.tensor([[0.0, 0.0]])
    for a, b in ((some, none), (none, some)):
        for got, wanted in zip(merged(a, b), some, strict=True):
            assert torch.equal(got, wanted)
    for got, wanted in zip(merged(none, none), none, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("keys", [1, 255, 256, 257, 600])
def test_chunks_of_any_number_give_the_plain_softmax(keys: int) -> None:
    made = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(n, 2, 16, generator=made).bfloat16() for n in (3, keys, keys))
    first = torch.tensor([0, keys // 4, keys // 2]).int()
    last = torch.tensor([0, keys // 2, keys - 1]).int()
    out, lse = attention_p32_torch(q, k, v, first, last, scale=0.25)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * 0.25
    place = torch.arange(keys)
    scores = scores.masked_fill((place < first[:, None]) | (place > last[:, None]), -torch.inf)
    wanted = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())
    # weights within 2^-17, sums in fp32, and one rounding to bf16
    torch.testing.assert_close(out.double(), wanted, rtol=2.0**-8, atol=2.0**-14)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1).T, rtol=1e-5, atol=1e-5)


def test_the_declared_vacuous_fault_is_shown_by_no_input() -> None:
    assert shown(find(NAME), Change(modes={"lse": "toward_zero"})) == 0
