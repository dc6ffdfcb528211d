"""Corrected biases: literal rows, and a layer whose mean output is kept."""

from __future__ import annotations

from typing import Any

import torch
from literal import refused

from contract.kernels.bias_correct import bias_correct_torch

INPUTS: dict[str, Any] = {
    "weight": [[1.5, -2.25, 3.0], [0.5, 4.0, -1.0]],
    "quantised": [[2.0, -2.0, 3.0], [0.0, 4.0, -1.0]],
    "mean": [10.0, 20.0, 5.0],
    "quantised_mean": [8.0, 20.0, 6.0],
    "bias": [100.0, -7.0],
}
# 15 - 45 + 15 less 16 - 40 + 18; 5 + 80 - 5 less 0 + 80 - 6
RIGHT = [91.0, -1.0]


def test_a_correction_by_hand() -> None:
    for profile in ("once", "float32"):
        assert refused("bias_correct", INPUTS, RIGHT, profile=profile) == {"out": 0}
        # not corrected, the other way, without the bias, one mean for both, one weight for both
        for wrong in ([100, -7], [109, -13], [-9, 6], [92.5, -2], [97.5, -7]):
            assert refused("bias_correct", INPUTS, wrong, profile=profile)["out"] > 0, wrong
    found = bias_correct_torch(*(torch.tensor(INPUTS[name]) for name in INPUTS))
    assert found.tolist() == RIGHT


def test_the_stored_bias_is_rounded_once() -> None:
    # 256 + 1.5 lies between bf16's 256 and 258; 1.5 itself is one of its values
    row = {"weight": [[1.5]], "quantised": [[0.0]], "mean": [1.0], "quantised_mean": [1.0]}
    assert refused("bias_correct", {**row, "bias": [256.0]}, [258.0], profile="once")["out"] == 0
    assert refused("bias_correct", {**row, "bias": [256.0]}, [256.0], profile="once")["out"] == 1
    # 256 + 1.0 is a tie, which goes to the even 256, also where the correction is 2 - 1
    tie = {"weight": [[2.0]], "quantised": [[1.0]], "mean": [1.0], "quantised_mean": [1.0]}
    assert refused("bias_correct", {**tie, "bias": [256.0]}, [256.0], profile="once")["out"] == 0
    assert refused("bias_correct", {**tie, "bias": [256.0]}, [258.0], profile="once")["out"] == 1


def test_the_mean_output_is_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 64, generator=generator) + 0.3
    weight, bias = torch.randn(16, 64, generator=generator), torch.randn(16, generator=generator)
    codes, read = (weight * 4).round() / 4, (x * 8).trunc() / 8
    before = (x @ weight.T + bias).mean(0)
    corrected = bias_correct_torch(weight, codes, x.mean(0), read.mean(0), bias)
    after = (read @ codes.T + corrected).mean(0)
    assert (after - before).abs().max() < 1e-4
    assert ((read @ codes.T + bias).mean(0) - before).abs().max() > 0.1
