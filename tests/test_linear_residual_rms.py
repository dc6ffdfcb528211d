"""Projections with a norm behind them: literal rows, and agreement with the contracts that they are composed of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import find, make_case
from contract.inputs import exact_cases
from contract.kernels.add_rms_tail import add_rms_tail_torch
from contract.kernels.linear import linear_torch
from contract.kernels.linear_residual_rms import linear_residual_rms_torch
from contract.ranges import case_range


def judged(profile: str, total: ArrayLike, out: ArrayLike) -> dict[str, int]:
    """How many values are not allowed where the product is 257, 0 and the stream 2, 1."""
    kernel = find("linear_residual_rms", profile)
    values = {
        "x": np.array([[1.0, 1.0]]),
        "weight": np.array([[128.0, 129.0], [1.0, -1.0]]),
        "residual": np.array([[2.0, 1.0]]),
        "norm_weight": np.ones(2),
    }
    case = make_case(kernel, {"rows": 1, "k": 2, "n": 2}, values, {"eps": 1e-6})
    allowed, refused = case_range(kernel, case), {}
    for name, given in (("total", total), ("out", out)):
        fmt = allowed[name].fmt
        bits = formats.encode(formats.round_to(np.asarray(given, np.float64), fmt), fmt)
        refused[name] = int(allowed[name].refused(bits).sum())
    return refused


def normed(a: float, b: float) -> Any:
    row = np.array([[a, b]])
    return row / np.sqrt(np.square(row).mean() + 1e-6)


RIGHT = {"total": 0, "out": 0}


def test_the_product_is_rounded_before_the_stream_is_added_or_not() -> None:
    # 257 is stored as 256: 256 + 2 = 258; unrounded 257 + 2 = 259 is stored as 260
    assert judged("each", [[258.0, 1.0]], normed(258.0, 1.0)) == RIGHT
    assert judged("fused", [[260.0, 1.0]], normed(259.0, 1.0)) == RIGHT
    assert judged("each", [[260.0, 1.0]], normed(260.0, 1.0))["total"] == 1
    assert judged("fused", [[258.0, 1.0]], normed(258.0, 1.0))["total"] == 1


def test_the_norm_reads_the_sum() -> None:
    assert judged("each", [[258.0, 1.0]], normed(256.0, 0.0)) == {"total": 0, "out": 1}


@pytest.mark.parametrize("profile", ["each", "fused"])
def test_most_candidates_are_exact(profile: str) -> None:
    kernel = find("linear_residual_rms", profile)
    found, candidates = exact_cases(kernel, 0)
    assert sum(case.rows(kernel) for case, _ in found) > 0.7 * candidates


def test_each_is_a_linear_layer_and_a_tail() -> None:
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    x, weight, residual, gain = drawn(5, 300), drawn(7, 300), drawn(5, 7), drawn(7)
    branch = linear_torch(x, weight, profile="once")
    parts = add_rms_tail_torch(branch, residual, gain, eps=1e-6, profile="each")
    joint = linear_residual_rms_torch(x, weight, residual, gain, eps=1e-6, profile="each")
    assert all(torch.equal(a, b) for a, b in zip(joint, parts, strict=True))
    fused = linear_residual_rms_torch(x, weight, residual, gain, eps=1e-6, profile="fused")
    assert not torch.equal(joint[0], fused[0])
