"""Softmax: literal rows, rows without a live place, large values, and torch's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from literal import refused

from contract.kernels.softmax import softmax_torch

INF, NAN = math.inf, math.nan
# 1 / (1 + e^-1), e^-1 / (1 + e^-1); two equal places 1000 above the others; a masked one
X = [[1.0, 0.0, -INF], [1000.0, 1000.0, 0.0], [-2000.0, -INF, -INF]]
RIGHT = [[0.7310585786300049, 0.2689414213699951, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("profile", ["once", "empty_zeros", "float32"])
def test_literal_rows(profile: str) -> None:
    assert refused("softmax", {"x": X}, RIGHT, profile=profile) == {"out": 0}
    x = torch.tensor(X, dtype=torch.float32 if profile == "float32" else torch.bfloat16)
    out = softmax_torch(x, profile=profile).double().numpy()
    assert refused("softmax", {"x": X}, out, profile=profile) == {"out": 0}


@pytest.mark.parametrize(
    ("faulty", "count"),
    [([[0.731, 0.269, 0.0], [NAN, NAN, NAN], [NAN, NAN, NAN]], 6),
     ([[2 / 3, 1 / 3, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], 2),
     ([[1.0, 0.3678794, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], 4),
     ([[0.5761169, 0.2119416, 0.2119416], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], 3)],
    ids=["no maximum", "base two", "not normalised", "padding of zeros"],
)  # fmt: skip
def test_another_formula_is_refused(faulty: list[list[float]], count: int) -> None:
    assert refused("softmax", {"x": X}, faulty) == {"out": count}


def test_a_row_without_a_live_place_is_nan_or_zeros() -> None:
    x = {"x": [[-INF, -INF], [0.0, NAN], [INF, 0.0]]}
    nan = np.full((3, 2), NAN)
    zeros = [[0.0, 0.0], [NAN, NAN], [NAN, NAN]]
    assert refused("softmax", x, nan, profile="once") == {"out": 0}
    assert refused("softmax", x, zeros, profile="once") == {"out": 2}
    assert refused("softmax", x, zeros, profile="empty_zeros") == {"out": 0}
    assert refused("softmax", x, nan, profile="empty_zeros") == {"out": 2}
    assert refused("softmax", x, np.zeros((3, 2)), profile="empty_zeros") == {"out": 4}
    uniform = [[0.5, 0.5], [NAN, NAN], [NAN, NAN]]
    assert refused("softmax", x, uniform, profile="empty_zeros") == {"out": 2}


def test_fp32_shares_are_within_a_few_ulps() -> None:
    x = {"x": [[1.0, 0.0]]}
    share = 1.0 / (1.0 + math.exp(-1.0))
    assert refused("softmax", x, [[share, 1.0 - share]], profile="float32") == {"out": 0}
    far = share * (1 + 2.0**-19)
    assert refused("softmax", x, [[far, 1.0 - share]], profile="float32") == {"out": 1}
