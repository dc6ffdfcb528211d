"""Gated projections: literal rows, and agreement with the two contracts that they are composed of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import find, make_case
from contract.inputs import exact_cases
from contract.kernels.linear import linear_torch
from contract.kernels.linear_swiglu import linear_swiglu_torch
from contract.kernels.swiglu import swiglu_torch
from contract.ranges import case_range


def judged(profile: str, x: ArrayLike, gate: ArrayLike, up: ArrayLike, out: ArrayLike) -> int:
    """How many outputs are not allowed."""
    kernel = find("linear_swiglu", profile)
    a, g, u = (np.asarray(v, np.float64) for v in (x, gate, up))
    shape = {"rows": a.shape[0], "k": a.shape[1], "n": g.shape[0]}
    case = make_case(kernel, shape, {"x": a, "gate_weight": g, "up_weight": u})
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


def silu(v: float) -> float:
    return float(v / (1.0 + np.exp(-v)))


def bf16(v: float) -> float:
    return float(formats.round_to(v, "bf16"))


@pytest.mark.parametrize("profile", ["each", "fused"])
def test_the_activation_is_the_gate_s(profile: str) -> None:
    x, gate, up = [[1.0, 2.0]], [[1.0, 0.0]], [[0.0, 1.0]]
    assert judged(profile, x, gate, up, [[silu(1.0) * 2.0]]) == 0
    assert judged(profile, x, gate, up, [[silu(2.0) * 1.0]]) == 1


def test_each_rounds_the_products_and_fused_does_not() -> None:
    # gate 8 + 2^-7 and up 257 are both no bf16 values
    x, gate, up = [[1.0, 1.0]], [[8.0, 2.0**-7]], [[128.0, 129.0]]
    g, u = 8.0 + 2.0**-7, 257.0
    each = bf16(bf16(silu(bf16(g))) * bf16(u))
    fused = bf16(silu(g) * u)
    assert each != fused
    assert judged("each", x, gate, up, [[each]]) == 0
    assert judged("fused", x, gate, up, [[fused]]) == 0
    assert judged("each", x, gate, up, [[fused]]) == 1
    assert judged("fused", x, gate, up, [[each]]) == 1


@pytest.mark.parametrize("profile", ["each", "fused"])
def test_most_candidates_are_exact(profile: str) -> None:
    kernel = find("linear_swiglu", profile)
    found, candidates = exact_cases(kernel, 0)
    assert sum(case.rows(kernel) for case, _ in found) > 0.9 * candidates


def test_each_is_two_linear_layers_and_a_swiglu() -> None:
    generator = torch.Generator().manual_seed(3)
    x, gate, up = (
        torch.randn(shape, generator=generator).bfloat16()
        for shape in ((5, 300), (7, 300), (7, 300))
    )
    parts: list[Any] = [linear_torch(x, w, profile="once") for w in (gate, up)]
    joint = linear_swiglu_torch(x, gate, up, profile="each")
    assert torch.equal(joint, swiglu_torch(*parts, profile="two_step"))
    assert not torch.equal(joint, linear_swiglu_torch(x, gate, up, profile="fused"))
