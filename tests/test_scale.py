"""A layer's scalar: literal products, and the faults that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from literal import refused

from contract.kernels.scale import scale_torch

# 129 * 129 / 128 = 130.0078 lies just above bf16's 130; 131 * 129 / 128 = 132.02, 132 below 133
H = [[129.0, -131.0, 0.0, -0.0, math.inf, 1.0]]
S = 129.0 / 128.0
RIGHT = [[130.0, -132.0, 0.0, -0.0, math.inf, S]]


def test_products_are_rounded_once() -> None:
    assert refused("scale", {"h": H, "scalar": S}, RIGHT) == {"out": 0}
    exact = [[129.0 * S, -131.0 * S, 0.0, -0.0, math.inf, S]]
    assert refused("scale", {"h": H, "scalar": S}, exact, profile="float32") == {"out": 0}
    assert refused("scale", {"h": H, "scalar": S}, RIGHT, profile="float32") == {"out": 2}
    out = scale_torch(torch.tensor(H).bfloat16(), torch.tensor(S).bfloat16())
    np.testing.assert_array_equal(out.double().numpy(), RIGHT)


@pytest.mark.parametrize(
    ("faulty", "count"),
    [(H, 3), ([[131.0, -133.0, 0.0, -0.0, math.inf, S * S]], 3),
     ([[130.0, -132.0, 0.0, 0.0, math.nan, S]], 2)],
    ids=["left out", "twice", "specials"],
)  # fmt: skip
def test_another_product_is_refused(faulty: list[list[float]], count: int) -> None:
    assert refused("scale", {"h": H, "scalar": S}, faulty) == {"out": count}


def test_a_tie_goes_to_even() -> None:
    # 3 * 87 = 261 lies halfway between 260 and 262, 5 * 87 = 435 between 434 and 436
    tie = {"h": [[3.0, 5.0]], "scalar": 87.0}
    assert refused("scale", tie, [[260.0, 436.0]]) == {"out": 0}
    assert refused("scale", tie, [[260.0, 434.0]]) == {"out": 1}
    assert refused("scale", tie, [[262.0, 436.0]]) == {"out": 1}
