"""GPTQ blocks: a block by hand, the factor by its residual, and an error below that of nearest codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import find, make_case, shape_from
from contract.errors import CaseError
from contract.kernels.gptq_block64 import (
    gptq_block64_torch,
    inverse_factor,
    nearest,
    quantise_weight,
)
from contract.ranges import case_range
from contract.stages import observing

# s = 1/2; three channels, of which the first moves both others and the second the third
WEIGHT = [[1.1875, 0.5, -2.0], [-0.8125, 1.75, 9.0]]
FACTOR = [[0.5, 0.25, -0.125], [7.0, 1.0, 0.5], [7.0, 7.0, 2.0]]
SCALES = [0.5, 0.5]
# w / s = 2.375 -> 2: e = 0.1875 / 0.5; 0.5 - 0.09375 = 0.40625, over s 0.8125 -> 1: e = -0.09375;
# -2 + 0.046875 + 0.046875. -1.625 -> -2: e = 0.375; 1.75 - 0.09375 = 1.65625, over s 3.3125 -> 3: e = 0.15625;
# 9 + 0.046875 - 0.078125, over s beyond 7
CODES = [[2, 1, -4], [-2, 3, 7]]
COMPENSATED = [[1.1875, 0.40625, -1.90625], [-0.8125, 1.65625, 8.96875]]


def judged(codes: Any, compensated: Any, to: str = "int4") -> dict[str, int]:
    """How many codes and compensated weights are not allowed, each from the weights before it as they are given."""
    kernel = find("gptq_block64", "each_update", {"to": to})
    inputs = {"weight": WEIGHT, "factor": FACTOR, "scales": SCALES}
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    case = make_case(kernel, shape_from(kernel, {n: x.shape for n, x in arrays.items()}), arrays)
    given = {"codes": codes, "compensated": compensated}
    bits = {}
    for operand in kernel.outputs():
        fmt = kernel.format(operand)
        values = formats.round_to(np.asarray(given[operand.name], np.float64), fmt)
        bits[operand.name] = formats.encode(values, fmt)
    allowed = case_range(kernel, case, prepare=observing(kernel, bits))
    return {name: int(allowed[name].refused(bits[name]).sum()) for name in bits}


def test_a_block_by_hand() -> None:
    assert judged(CODES, COMPENSATED) == {"codes": 0, "compensated": 0}
    found = gptq_block64_torch(*(torch.tensor(x) for x in (WEIGHT, FACTOR, SCALES)), to="int4")
    assert found[0].tolist() == CODES
    assert found[1].tolist() == COMPENSATED


def test_each_fault_is_refused_where_it_is() -> None:
    # not compensated: the second channel, and the third, which its own error would have moved
    assert judged([[2, 1, -4], [-2, 4, 7]], WEIGHT) == {"codes": 0, "compensated": 4}
    # errors added
    assert judged(CODES, [[1.1875, 0.59375, -1.90625], [-0.8125, 1.84375, 8.96875]])["codes"] > 0
    # not divided by the diagonal
    wrong = [[1.1875, 0.453125, -1.90625], [-0.8125, 1.703125, 8.96875]]
    assert judged(CODES, wrong)["compensated"] >= 2
    # the code of what came in, though the weight was compensated
    assert judged([[2, 1, -4], [-2, 4, 7]], COMPENSATED) == {"codes": 1, "compensated": 0}
    # wraps where it saturates
    assert judged([[2, 1, -4], [-2, 3, -6]], COMPENSATED)["codes"] == 1


def test_a_later_channel_is_judged_from_what_came_before() -> None:
    # the second weight is one fp32 step off: it alone, as the third follows from it
    moved = np.array(COMPENSATED)
    moved[0, 1] = np.nextafter(np.float32(0.40625), np.float32(1.0))
    error = (moved[0, 1] - 0.5) * 0.5
    moved[0, 2] = np.float32(-2.0 + 0.046875 - error)
    assert judged(CODES, moved) == {"codes": 0, "compensated": 1}


def test_fp8_codes_saturate() -> None:
    # 2.375 is a tie, which goes to 2.5: e = -0.125; 1.0625 is one, too: e = 0.03125. The second row has codes
    codes = [[2.5, 1.0, -4.0], [-1.625, 3.5, 18.0]]
    compensated = [[1.1875, 0.53125, -2.03125], WEIGHT[1]]
    assert judged(codes, compensated, to="e4m3fnuz") == {"codes": 0, "compensated": 0}
    away = [[2.25, 1.125, -4.0], codes[1]]
    assert judged(away, compensated, to="e4m3fnuz") == {"codes": 2, "compensated": 0}
    big = nearest(torch.tensor([1e4, -1e4, 247.0, float("nan")]), "e4m3fnuz")
    assert big[:3].tolist() == [240.0, -240.0, 240.0]
    assert bool(big[3].isnan())


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(512, 1, generator=generator)
    x = torch.randn(512, 80, generator=generator) + common * torch.linspace(0.2, 2.0, 80)
    return x, 0.25 * torch.randn(24, 80, generator=generator)


def test_the_factor_is_upper_and_inverts_the_hessian() -> None:
    x, _ = data()
    factor = inverse_factor(x[:, :64], damping=0.01)
    assert torch.equal(factor, factor.triu())
    assert bool((factor.diagonal() > 0).all())
    wide = x[:, :64].double()
    hessian = wide.T @ wide
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(64, dtype=torch.float64)
    u = factor.double()
    residual = (u.T @ u @ hessian - torch.eye(64, dtype=torch.float64)).abs()
    # each entry of U within half a unit of fp32, and the products' own conditions
    bound = 2.0**-23 * (u.abs().T @ u.abs() @ hessian.abs())
    assert bool((residual <= bound).all())
    # the factor of H is no factor of its inverse, nor is a lower one
    lower = torch.linalg.cholesky(hessian)
    for wrong in (lower.T, u.T):
        off = (wrong.T @ wrong @ hessian - torch.eye(64, dtype=torch.float64)).abs()
        assert float(off.max()) > 1e-2


@pytest.mark.parametrize("to", ["int4", "e4m3fnuz"])
def test_weighted_errors_are_below_those_of_nearest_codes(to: str) -> None:
    x, weight = data()
    scales = weight.abs().amax(1) / (7.0 if to == "int4" else 15.0)
    codes = quantise_weight(weight, x, scales, to).float()
    plain = nearest(weight / scales[:, None], to)
    assert (codes != plain).float().mean() > 0.03
    # blocks of 64 and 16 channels, each with its own Hessian
    for block in (slice(0, 64), slice(64, 80)):
        losses = [
            float((x[:, block] @ (weight - c * scales[:, None])[:, block].T).square().sum())
            for c in (codes, plain)
        ]
        assert losses[0] < 0.9 * losses[1]


def test_what_a_factor_cannot_be_made_of() -> None:
    with pytest.raises(ValueError, match="at most 64"):
        inverse_factor(torch.ones(2, 65))
    with pytest.raises(ValueError, match="positive"):
        inverse_factor(torch.ones(2, 4), damping=0.0)
    for x in (torch.zeros(2, 4), torch.full((2, 4), float("nan"))):
        with pytest.raises(ValueError, match="needs data"):
            inverse_factor(x)
    kernel = find("gptq_block64", "each_update", {"to": "int4"})
    sizes = {"rows": 1, "columns": 65}
    values = {"weight": np.zeros((1, 65)), "factor": np.eye(65), "scales": np.ones(1)}
    with pytest.raises(CaseError, match="at most 64 columns"):
        make_case(kernel, sizes, values)
