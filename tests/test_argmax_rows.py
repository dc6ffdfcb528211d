"""Picks of rows: ties, padded lanes, NaN, infinities, and indices that bf16 does not hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.case import find
from contract.gates import reference
from contract.judge import Bench
from contract.kernels.argmax_rows import argmax_rows_torch

INF, NAN = math.inf, math.nan


def judged(logits: Any, ids: Any, flags: Any, profile: str = "float32_logits") -> tuple[int, int]:
    counts = refused(
        "argmax_rows", {"logits": logits}, {"ids": ids, "flags": flags}, profile=profile
    )
    return counts["ids"], counts["flags"]


def picked(logits: Any) -> tuple[list[int], list[int]]:
    ids, flags = argmax_rows_torch(torch.tensor(logits, dtype=torch.float32))
    return ids.tolist(), flags.tolist()


def ties() -> Any:
    x = np.zeros((3, 512))
    x[0, [9, 260]], x[1, [511, 257]], x[2, [300, 44, 45]] = 1.0, 2.0, 3.0
    return x


def test_the_lowest_of_equal_places_is_picked() -> None:
    assert judged(ties(), [9, 257, 44], [0, 0, 0]) == (0, 0)
    assert picked(ties()) == ([9, 257, 44], [0, 0, 0])


@pytest.mark.parametrize(
    ("ids", "count"),
    [([260, 511, 300], 3), ([260, 257, 300], 2), ([10, 258, 45], 3), ([9, 256, 44], 1),
     ([257, 44, 9], 3)],
    ids=["last", "lowest thread", "off by one", "index in bf16", "rows exchanged"],
)  # fmt: skip
def test_another_place_is_refused(ids: list[int], count: int) -> None:
    assert judged(ties(), ids, [0, 0, 0]) == (count, 0)


def test_no_pick_lies_past_the_row() -> None:
    x = [[-INF] * 5, [-INF, -INF, -INF, -1e30, -INF], [-1.0, -2.0, -3.0, -4.0, -5.0]]
    assert judged(x, [0, 3, 0], [1, 0, 0]) == (0, 0)
    assert picked(x) == ([0, 3, 0], [1, 0, 0])
    assert judged(x, [7, 3, 5], [1, 0, 0]) == (2, 0)
    assert judged(x, [0, 7, 0], [0, 1, 0]) == (1, 2)


def test_nan_is_picked_and_flagged() -> None:
    x = [[NAN] * 6, [0, 1, NAN, 5, 2, NAN], [0, 9, 3, 5, 2, 1], [INF, NAN, INF, 0, 0, 0]]
    assert judged(x, [0, 2, 1, 1], [1, 1, 0, 1]) == (0, 0)
    assert picked(x) == ([0, 2, 1, 1], [1, 1, 0, 1])
    assert judged(x, [7, 3, 1, 0], [1, 1, 0, 1]) == (3, 0)
    assert judged(x, [2**31 - 1, 2, 1, 1], [0, 0, 0, 0]) == (1, 3)


def test_plus_infinity_is_flagged_and_a_masked_token_is_not() -> None:
    x = [[1.0, INF, 2.0, INF], [1.0, -INF, 2.0, -INF]]
    assert judged(x, [1, 2], [1, 0]) == (0, 0)
    assert picked(x) == ([1, 2], [1, 0])
    assert judged(x, [3, 2], [0, 1]) == (1, 2)


def test_zeros_of_both_signs_are_equal_and_subnormals_are_not() -> None:
    x = [[-1.0, -0.0, 0.0], [0.0, 2.0**-149, 2.0**-148]]
    assert judged(x, [1, 2], [0, 0]) == (0, 0)
    assert judged(x, [2, 0], [0, 0]) == (2, 0)
    assert picked(x) == ([1, 2], [0, 0])


def test_logits_are_not_rounded_before_they_are_compared() -> None:
    x = [[256.0, 256.5, 1.0]]
    assert judged(x, [1], [0]) == (0, 0)
    assert judged(x, [0], [0]) == (1, 0)
    assert judged(x, [0], [0], "bf16_logits") == (0, 0)


def test_the_audit_reads_the_smallest_case_where_all_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(find("argmax_rows"), "quick", 0)
    cases = reference._cases(bench)
    width = {piece.shape["n"] for _, piece in reference._audited(bench, cases)}
    assert len(width) > 1
    assert (
        max(width) <= 2 * reference.AUDIT_ELEMENTS["quick"] < max(c.shape["n"] for _, c, _ in cases)
    )
    monkeypatch.setitem(reference.AUDIT_ELEMENTS, "quick", 0)
    ((_, piece),) = reference._audited(bench, cases)
    assert piece.shape["n"] == min(c.shape["n"] for _, c, _ in cases)
