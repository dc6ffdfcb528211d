"""The residual sum: literal sums in both formats and the faults that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from literal import refused

from contract.kernels.residual_add import residual_add_torch

INF, NAN = math.inf, math.nan
# 256 + 1 and 258 + 1 are ties of bf16; 3 is one step beside; -0 + -0 keeps its sign
A = [[256.0, 258.0, 256.0, 1.5, -0.0, 1.0, INF, INF]]
B = [[1.0, 1.0, 3.0, -1.5, -0.0, 2.0**-30, -INF, 1.0]]
RIGHT = [[256.0, 260.0, 260.0, 0.0, -0.0, 1.0, NAN, INF]]
WIDE = [[257.0, 259.0, 259.0, 0.0, -0.0, 1.0, NAN, INF]]


def test_sums_are_rounded_once() -> None:
    assert refused("residual_add", {"a": A, "b": B}, RIGHT) == {"out": 0}
    assert refused("residual_add", {"a": A, "b": B}, WIDE, profile="float32") == {"out": 0}
    a, b = torch.tensor(A).bfloat16(), torch.tensor(B).bfloat16()
    np.testing.assert_array_equal(residual_add_torch(a, b).double().numpy(), RIGHT)


@pytest.mark.parametrize(
    ("faulty", "count"),
    [(A, 4), ([[256.0, 258.0, 258.0, 0.0, -0.0, 1.0, NAN, INF]], 2),
     ([[258.0, 260.0, 260.0, 0.0, -0.0, 1.0, NAN, INF]], 1),
     ([[256.0, 260.0, 260.0, 0.0, 0.0, 1.0, INF, INF]], 2)],
    ids=["stale", "truncated", "ties away", "specials"],
)  # fmt: skip
def test_another_sum_is_refused(faulty: list[list[float]], count: int) -> None:
    assert refused("residual_add", {"a": A, "b": B}, faulty) == {"out": count}


def test_fp32_sums_are_not_rounded_to_bf16() -> None:
    assert refused("residual_add", {"a": A, "b": B}, RIGHT, profile="float32") == {"out": 3}
    tie = {"a": [[2.0**24, 2.0**24 + 2]], "b": [[1.0, 1.0]]}
    how = {"profile": "float32"}
    assert refused("residual_add", tie, [[2.0**24, 2.0**24 + 4]], **how) == {"out": 0}
    assert refused("residual_add", tie, [[2.0**24 + 2, 2.0**24 + 2]], **how) == {"out": 2}
