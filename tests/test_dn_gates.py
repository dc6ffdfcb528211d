"""Gates of the delta rule: literal values, softplus at its ends, and agreement with torch's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import find, make_case
from contract.kernels.dn_gates import dn_gates_torch
from contract.ranges import case_range

# softplus to 1e-7, from a table of logaddexp(0, x)
X = [-20.0, -5.0, 0.0, 5.0, 20.0, 88.0, 89.0, 100.0, 1e4]
SOFTPLUS = [2.0611536e-09, 0.006715348489, 0.69314718056, 5.006715348489, 20.0000000021, 88.0, 89.0, 100.0, 1e4]  # fmt: skip


def refused(
    beta: ArrayLike, g: ArrayLike, profile: str = "float32", **given: Any
) -> dict[str, list[bool]]:
    """Which outputs of one token are not allowed; what is not given is zero."""
    kernel = find("dn_gates", profile)
    heads = len(np.ravel(g))
    values = {}
    for operand in kernel.inputs():
        shape = (1, heads) if "tokens" in operand.dims else (heads,)
        values[operand.name] = np.broadcast_to(np.asarray(given.get(operand.name, 0.0)), shape)
    case = make_case(kernel, {"tokens": 1, "heads": heads}, values)
    result = {}
    for name, out in case_range(kernel, case).items():
        x = np.asarray([np.ravel({"beta": beta, "g": g}[name])], np.float64)
        bits = formats.encode(formats.round_to(np.broadcast_to(x, (1, heads)), out.fmt), out.fmt)
        result[name] = out.refused(bits)[0].tolist()
    return result


def test_softplus_is_its_argument_at_one_end_and_exp_at_the_other() -> None:
    right = refused([0.5], -np.asarray(SOFTPLUS), a=[X])
    assert not any(right["g"] + right["beta"])
    with np.errstate(over="ignore"):
        written_out = np.log(1.0 + np.exp(np.asarray(X, np.float32)))
    # fp32 loses exp(-20) beside 1, and overflows from 89 on
    found = dict(zip(X, refused([0.5], -written_out, a=[X])["g"], strict=True))
    assert [x for x, wrong in found.items() if wrong and x != -5.0] == [-20.0, 89.0, 100.0, 1e4]
    relu = np.maximum(X, 0.0)
    assert refused([0.5], -relu, a=[X])["g"] == [x < 17.0 for x in X]
    assert all(refused([0.5], np.asarray(SOFTPLUS), a=[X])["g"])


def test_a_token_by_hand() -> None:
    # a_log = ln 2, a = 1, dt_bias = 1/2: g = -2 ln(1 + e^1.5) = -3.40282656; beta = sigmoid(2) = 0.880797078
    given = {"a": 1.0, "b": 2.0, "a_log": np.log(2.0), "dt_bias": 0.5}
    assert refused([0.880797078], [-3.40282656], **given) == {"beta": [False], "g": [False]}
    assert refused([0.880797078], [-3.40282656], "once", **given) == {"beta": [False], "g": [False]}
    # without the bias, the bias behind softplus, without the exponential, in bf16
    for g in (-2.62652338, -3.62652338, -1.17932695, -3.40625):
        assert refused([0.880797078], [g], **given)["g"] == [True]


def test_the_rate_is_rounded_to_bf16() -> None:
    # sigmoid(2) = 0.880797 lies between 0.87890625 and 0.8828125, nearer to the first
    given = {"b": 2.0}
    g = [-0.693147181]
    assert refused([0.87890625], g, "once", **given)["beta"] == [False]
    assert refused([0.8828125], g, "once", **given)["beta"] == [True]
    assert refused([0.87890625], g, "float32", **given)["beta"] == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operators_of_the_modelling_code_are_allowed(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (6.0 * torch.randn(64, 32, generator=generator) for _ in "ab")
    a, b = a.to(dtype), b.to(dtype)
    a_log, dt_bias = torch.randn(32, generator=generator), torch.randn(32, generator=generator)
    g = -a_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    profile = "once" if dtype == torch.bfloat16 else "float32"
    kernel = find("dn_gates", profile)
    values = {"a": a, "b": b, "a_log": a_log, "dt_bias": dt_bias}
    case = make_case(
        kernel, {"tokens": 64, "heads": 32}, {n: x.double().numpy() for n, x in values.items()}
    )
    allowed = case_range(kernel, case)
    for beta, decay in ((b.sigmoid(), g), dn_gates_torch(a, b, a_log, dt_bias)):
        for name, out in (("beta", beta), ("g", decay)):
            fmt = allowed[name].fmt
            bits = formats.encode(out.double().numpy(), fmt)
            assert not allowed[name].refused(bits).any(), name
