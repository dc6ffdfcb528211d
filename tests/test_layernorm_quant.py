"""Layer norm with codes: literal codes under both profiles, and the faults that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.formats import round_to
from contract.kernels.layernorm_quant import layernorm_quant_torch

EPS, SCALE = 1e-6, 0.03125
# mean 8, variance 1: y = +-w + b, less a little for eps
X = [[9.0, 7.0, 9.0, 7.0]]
W = [1.0, 1.0, 2.0, 2.0]
B = [0.484375, 0.484375, 3.0, -3.0]
# 1.484375 / 2^-5 = 47.5, -0.515625 / 2^-5 = -16.5, beyond both ends
RIGHT = {"fused": [[47, -16, 127, -127]], "bf16_between": [[48, -16, 127, -127]]}


def judged(profile: str, out: Any, x: Any = X, w: Any = W, b: Any = B) -> int:
    scalars = {"eps": EPS, "scale": SCALE}
    rows = {"x": x, "weight": w, "bias": b}
    return refused("layernorm_quant", rows, out, profile=profile, scalars=scalars)["codes"]


@pytest.mark.parametrize("profile", ["fused", "bf16_between"])
def test_literal_codes(profile: str) -> None:
    assert judged(profile, RIGHT[profile]) == 0
    x, w, b = (torch.tensor(v).bfloat16() for v in (X, W, B))
    out = layernorm_quant_torch(x, w, b, eps=EPS, scale=SCALE, profile=profile)
    assert out.tolist() == RIGHT[profile]
    other = RIGHT["fused" if profile == "bf16_between" else "bf16_between"]
    assert judged(profile, other) == 1


@pytest.mark.parametrize(
    ("faulty", "count"),
    [([[48, -17, 127, -127]], 1), ([[47, -16, 127, -127]], 1), ([[48, -16, 127, -128]], 1),
     ([[32, -32, 64, -64]], 4), ([[48, -16, -96, 96]], 2)],
    ids=["half away", "truncated", "-128", "no bias", "wraps"],
)  # fmt: skip
def test_other_codes_are_refused(faulty: Any, count: int) -> None:
    assert judged("bf16_between", faulty) == count


def test_a_constant_row_gives_the_codes_of_its_bias() -> None:
    x = [[3000.0] * 4]
    assert judged("fused", [[16, 16, 96, -96]], x, b=[0.5, 0.5, 3.0, -3.0]) == 0
    assert judged("fused", [[0, 0, 0, 0]], x, b=[0.5, 0.5, 3.0, -3.0]) == 4


@pytest.mark.parametrize("profile", ["fused", "bf16_between"])
def test_float64_values_are_allowed(profile: str) -> None:
    rng = np.random.default_rng(1)
    x = round_to(3.0 * rng.standard_normal((8, 300)) + 1.0, "bf16")
    w, b = (round_to(v, "bf16") for v in (1 + rng.random(300), 0.25 * rng.standard_normal(300)))
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS) * w + b
    y = round_to(y, "bf16") if profile == "bf16_between" else y
    codes = np.clip(np.rint(y / SCALE), -127, 127)
    assert judged(profile, codes, x, w, b) == 0
    assert judged(profile, codes + np.where(codes < 127, 1, -1), x, w, b) > 0.99 * codes.size


@pytest.mark.parametrize("scale", [-0.5, math.inf])
def test_a_scale_that_does_not_divide_is_refused(scale: float) -> None:
    x, w, b = (torch.tensor(v).bfloat16() for v in (X, W, B))
    with pytest.raises(ValueError, match="positive finite number"):
        layernorm_quant_torch(x, w, b, eps=EPS, scale=scale, profile="fused")
