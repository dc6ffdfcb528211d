"""Soft cap: literal values, both dtypes, and the faults that its contract refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract import formats
from contract.case import Case, find, make_case
from contract.kernels.clients.torch_activations import softcap_operators
from contract.kernels.softcap import softcap_torch
from contract.ranges import case_range, option_sets

X = [-100.0, -60.0, -15.0, 0.0, 1.0, 15.0, 30.0, 60.0, 100.0]
CAPPED = [-29.92373902421512, -28.920827402274508, -13.863514717800292, 0.0, 0.9996297941646859,
          13.863514717800292, 22.847824678672946, 28.920827402274508, 29.92373902421512]  # fmt: skip


def refused(
    profile: str, x: list[float], out: list[float], cap: float = 30.0, option: int = 0
) -> NDArray[np.bool_]:
    """Where the contract does not allow these outputs; they are rounded to the output's format first."""
    kernel = find("softcap", profile)
    case = make_case(kernel, {"rows": 1, "n": len(x)}, {"x": np.array([x])}, {"cap": cap})
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.array([out]), fmt), fmt)
    allowed = case_range(kernel, case, option_sets(kernel)[option])["out"]
    return np.asarray(allowed.refused(bits)[0])


def finite_bf16() -> NDArray[np.float64]:
    """Every finite bf16 value."""
    values = formats.decode(np.arange(1 << 16, dtype=np.uint16), formats.get("bf16"))
    return np.asarray(values[np.isfinite(values)])


def whole_range(profile: str, cap: float) -> tuple[Case, Any]:
    """A case of every finite bf16 value, and its range."""
    kernel = find("softcap", profile)
    x = finite_bf16().reshape(2, -1)
    case = make_case(kernel, {"rows": 2, "n": x.shape[1]}, {"x": x}, {"cap": cap})
    return case, case_range(kernel, case)["out"]


# ---- literal values


@pytest.mark.parametrize("option", [0, 1])
def test_cap_times_tanh_is_allowed(option: int) -> None:
    assert not refused("float32", X, CAPPED, option=option).any()


@pytest.mark.parametrize(
    "faulty",
    [
        [x * math.tanh(x / 30.0) for x in X],
        X,
        [30.0 * math.tanh(x) for x in X],
    ],
    ids=["times x", "not capped", "no divide"],
)
def test_another_formula_is_refused(faulty: list[float]) -> None:
    assert refused("float32", X, faulty).any()
    assert refused("float32", X, faulty, option=1).any()


def test_the_cap_is_applied_once() -> None:
    logits = [29.0, 45.0, 60.0, -90.0]
    once = [22.417074638519228, 27.154447609345993, 28.920827402274508, -29.851642610601914]
    twice = [19.004909595062756, 21.5638623620989, 22.382039953367986, -22.78528334396586]
    assert not refused("float32", logits, once).any()
    assert refused("float32", logits, logits).all()
    assert refused("float32", logits, twice).all()


def test_each_operator_rounds() -> None:
    # 23.5 / 30 = 0.78333 -> 0.78515625; tanh 0.65557 -> 0.65625; times 30 = 19.6875 -> 19.75 (a tie, to even)
    # without roundings 30 tanh(0.78333) = 19.63 -> 19.625
    assert not refused("each_op", [23.5], [19.75]).any()
    assert not refused("once", [23.5], [19.625]).any()
    assert refused("each_op", [23.5], [19.625]).all()
    assert refused("once", [23.5], [19.75]).all()


def test_specials() -> None:
    x = [math.inf, -math.inf, 0.0, -0.0, math.nan]
    assert not refused("each_op", x, [30.0, -30.0, 0.0, -0.0, math.nan]).any()
    assert refused("each_op", x, [math.nan, math.nan, -0.0, 0.0, 30.0]).all()


# ---- every finite bf16 value


@pytest.mark.parametrize("cap", [30.0, 50.0])
def test_torch_is_allowed_on_every_finite_bf16(cap: float) -> None:
    case, out = whole_range("each_op", cap)
    x = torch.from_numpy(case.operands["x"].view(np.int16)).view(torch.bfloat16)
    for y in (softcap_operators(x, cap=cap), softcap_torch(x, cap=cap, profile="each_op")):
        assert not out.refused(y.view(torch.int16).numpy().view(np.uint16)).any()


@pytest.mark.parametrize("cap", [30.0, 50.0])
def test_no_bf16_value_tells_the_reciprocal_from_the_quotient(cap: float) -> None:
    kernel = find("softcap", "each_op")
    case, out = whole_range("each_op", cap)
    other = case_range(kernel, case, {"division": "reciprocal"})["out"]
    # beyond the subnormals, which may be flushed at either step
    normal = np.abs(finite_bf16().reshape(2, -1)) > cap * 2.0**-124
    assert (out.lo == other.lo)[normal].all()
    assert (out.hi == other.hi)[normal].all()


@pytest.mark.parametrize("profile", ["each_op", "once"])
def test_bf16_outputs_are_one_value(profile: str) -> None:
    _, out = whole_range(profile, 30.0)
    usual = (np.abs(finite_bf16()) > 2.0**-100).reshape(2, -1)
    assert out.one_value()[usual].mean() > 0.9999


# ---- the faults of the planted kernels are there


def test_torch_operators_are_no_single_rounding() -> None:
    case, out = whole_range("once", 30.0)
    x = torch.from_numpy(case.operands["x"].view(np.int16)).view(torch.bfloat16)
    y = softcap_operators(x, cap=30.0)
    assert out.refused(y.view(torch.int16).numpy().view(np.uint16)).sum() > 200
