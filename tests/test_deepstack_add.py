"""Taps on image rows: literal sums, what other rows keep, and the vacuous point."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from literal import refused, shown

from contract.case import find
from contract.kernels.deepstack_add import deepstack_add_torch
from contract.readings.base import Change

# 256 + 1 and 258 + 1 are ties of bf16
ROWS: dict[str, Any] = {
    "h": [[[1.0, -0.0], [3.0, 256.0], [0.5, 258.0]]],
    "tap": [[[2.0, 1.0], [8.0, 1.0]]],
    "is_image": [[0, 1, 1]],
}
RIGHT = [[[1.0, -0.0], [5.0, 256.0], [8.5, 260.0]]]


def test_the_k_th_tap_row_is_added_to_the_k_th_image_row() -> None:
    assert refused("deepstack_add", ROWS, RIGHT) == {"out": 0}
    h, tap = (torch.tensor(ROWS[k]).bfloat16() for k in ("h", "tap"))
    out = deepstack_add_torch(h, tap, torch.tensor(ROWS["is_image"], dtype=torch.uint8))
    assert out.tolist() == RIGHT


@pytest.mark.parametrize(
    ("faulty", "count"),
    [
        (ROWS["h"], 3),
        ([[[3.0, 1.0], [11.0, 256.0], [8.5, 260.0]]], 3),
        ([[[1.0, -0.0], [11.0, 256.0], [2.5, 260.0]]], 2),
        ([[[1.0, -0.0], [5.0, 258.0], [8.5, 258.0]]], 2),
        ([[[1.0, 0.0], [5.0, 256.0], [8.5, 260.0]]], 1),
        ([[[1.0, -0.0], [2.0, 1.0], [8.0, 1.0]]], 4),
    ],
    ids=["no tap", "by position", "rows exchanged", "ties", "zero added to text", "spliced"],
)
def test_another_sum_is_refused(faulty: Any, count: int) -> None:
    assert refused("deepstack_add", ROWS, faulty) == {"out": count}


def test_infinities_of_both_signs_are_nan() -> None:
    rows = {"h": [[[math.inf]]], "tap": [[[-math.inf]]], "is_image": [[1]]}
    assert refused("deepstack_add", rows, [[[math.nan]]]) == {"out": 0}
    assert refused("deepstack_add", rows, [[[math.inf]]]) == {"out": 1}


def test_dropping_the_point_shows_nothing_because_the_store_rounds() -> None:
    kernel = find("deepstack_add")
    assert "drop-out" in kernel.profile.vacuous
    assert shown(kernel, Change(drop=frozenset({"out"}))) == 0
    assert shown(kernel, Change(modes={"out": "toward_zero"})) > 0
