"""RMS norm with codes: literal codes under both profiles, and the faults that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.formats import round_to
from contract.kernels.rmsnorm_quant import rmsnorm_quant_torch

EPS, SCALE = 1e-6, 0.03125
# mean square 1: y = x (1 + w)
X = [[1.0, -1.0, 1.0, -1.0]]
W = [0.484375, 0.515625, 3.5, 0.0]
# 1.484375 / 2^-5 = 47.5 and 1.515625 / 2^-5 = 48.5, less a little for eps; 4.5 / 2^-5 = 144
RIGHT = {"fused": [[47, -48, 127, -32]], "bf16_between": [[48, -48, 127, -32]]}


def judged(profile: str, out: Any, x: Any = X, w: Any = W, scale: float = SCALE) -> int:
    scalars = {"eps": EPS, "scale": scale}
    rows = {"x": x, "weight": w}
    return refused("rmsnorm_quant", rows, out, profile=profile, scalars=scalars)["codes"]


@pytest.mark.parametrize("profile", ["fused", "bf16_between"])
def test_literal_codes(profile: str) -> None:
    assert judged(profile, RIGHT[profile]) == 0
    x, w = torch.tensor(X).bfloat16(), torch.tensor(W).bfloat16()
    out = rmsnorm_quant_torch(x, w, eps=EPS, scale=SCALE, profile=profile)
    assert out.tolist() == RIGHT[profile]
    other = RIGHT["fused" if profile == "bf16_between" else "bf16_between"]
    assert judged(profile, other) == 1


@pytest.mark.parametrize(
    ("faulty", "count"),
    [([[48, -49, 127, -32]], 1), ([[47, -48, 127, -32]], 1), ([[16, -16, 112, 0]], 4),
     ([[48, -48, -112, -32]], 1), ([[0, 0, 0, 0]], 4)],
    ids=["half away", "truncated", "w for 1 + w", "wraps", "scale multiplied"],
)  # fmt: skip
def test_other_codes_are_refused(faulty: Any, count: int) -> None:
    assert judged("bf16_between", faulty) == count


def test_minus_128_is_no_code() -> None:
    x, w = [[1.0, -1.0]], [3.0, 3.0]
    assert judged("fused", [[127, -127]], x, w) == 0
    assert judged("fused", [[127, -128]], x, w) == 1


@pytest.mark.parametrize("profile", ["fused", "bf16_between"])
def test_float64_values_are_allowed(profile: str) -> None:
    rng = np.random.default_rng(1)
    x = round_to(3.0 * rng.standard_normal((8, 300)), "bf16")
    w = round_to(0.25 * rng.standard_normal(300), "bf16")
    y = x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + EPS) * (1.0 + w)
    y = round_to(y, "bf16") if profile == "bf16_between" else y
    codes = np.clip(np.rint(y / SCALE), -127, 127)
    assert judged(profile, codes, x, w) == 0
    assert judged(profile, codes + np.where(codes < 127, 1, -1), x, w) > 0.99 * codes.size


@pytest.mark.parametrize("scale", [0.0, math.nan])
def test_a_scale_that_does_not_divide_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="positive finite number"):
        rmsnorm_quant_torch(torch.ones(1, 2), torch.zeros(2), eps=EPS, scale=scale, profile="fused")
