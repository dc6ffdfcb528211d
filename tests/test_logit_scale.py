"""Scale of image-text logits: literal values, rounding points, transformers' operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.formats import round_to
from contract.kernels.logit_scale import logit_scale_torch

LOGITS, SCALE, BIAS = [[0.5, -0.25, 0.125, 0.0]], math.log(10.0), -10.0
RIGHT = [[-5.0, -12.5, -8.75, -10.0]]


def judged(out: Any, profile: str = "float32", scale: float = SCALE) -> int:
    rows = {"logits": LOGITS, "scale": scale, "bias": BIAS}
    return refused("logit_scale", rows, out, profile=profile)["out"]


def test_literal_values() -> None:
    # fp32's log 10 has the factor 10.0000003
    factor = math.exp(float(np.float32(SCALE)))
    assert judged(np.array(LOGITS) * factor + BIAS) == 0
    out = logit_scale_torch(torch.tensor(LOGITS), torch.tensor(SCALE), torch.tensor(BIAS))
    assert judged(out.double().numpy()) == 0
    # bf16's log 10 is 2.296875, whose factor 9.943 rounds to 9.9375: 0.5 times that less 10 is -5.03125
    assert judged([[-5.03125, -12.5, -8.75, -10.0]], "each_op") == 0
    assert judged(RIGHT, "each_op") == 1


@pytest.mark.parametrize(
    "faulty",
    [
        np.array(LOGITS) * SCALE + BIAS,
        np.array(LOGITS) / 10.0 + BIAS,
        (np.array(LOGITS) + BIAS) * 10.0,
        1.0 / (1.0 + np.exp(-np.array(RIGHT))),
    ],
    ids=["no exp", "divided", "bias scaled", "probabilities"],
)
def test_another_formula_is_refused(faulty: Any) -> None:
    assert judged(faulty) >= 3


def test_the_bias_is_added() -> None:
    assert judged(np.array(LOGITS) * 10.0) == 4
    assert judged(np.array(LOGITS) * 10.0 - BIAS) == 4


def test_each_operator_rounds_in_bf16() -> None:
    rng = np.random.default_rng(1)
    logits, scale, bias = (round_to(v, "bf16") for v in (rng.standard_normal((8, 64)), 4.7, -16.0))
    factor = round_to(np.exp(scale), "bf16")
    out = round_to(round_to(logits * factor, "bf16") + bias, "bf16")
    rows = {"logits": logits, "scale": scale, "bias": bias}
    assert refused("logit_scale", rows, out, profile="each_op") == {"out": 0}
    torch_out = logit_scale_torch(
        *(torch.from_numpy(np.asarray(v)).bfloat16() for v in rows.values())
    )
    assert np.array_equal(torch_out.double().numpy(), out)
    once = round_to(logits * np.exp(scale) + bias, "bf16")
    assert refused("logit_scale", rows, once, profile="each_op")["out"] > 100
