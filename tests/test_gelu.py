"""GELU: literal values, torch on every finite bf16 value, and the error function behind the erf form."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract import formats, functions
from contract.case import find, make_case
from contract.kernels.clients.torch_activations import functional_gelu
from contract.kernels.gelu import gelu_torch
from contract.ranges import OutputRange, case_range

LARGE = [-1e4, -100.0, -13.5, -10.5, 0.0, 10.5, 13.5, 100.0, 1e4]
NEAR = [-3.0, -2.5, -2.25, 2.25, 2.5, 3.0]
NEAR_TANH = [-0.0036373920817730195, -0.01508426608999857, -0.027201329897288604, 2.222798670102711,
             2.484915733910001, 2.9963626079182273]  # fmt: skip
NEAR_ERF = [-0.004049694094890287, -0.015524163314440348, -0.027505063473850584, 2.2224949365261493,
            2.4844758366855597, 2.99595030590511]  # fmt: skip


def refused(profile: str, form: str, x: list[float], out: list[float]) -> NDArray[np.bool_]:
    """Where the contract does not allow these outputs; they are rounded to the output's format first."""
    kernel = find("gelu", profile, {"form": form})
    case = make_case(kernel, {"rows": 1, "n": len(x)}, {"x": np.array([x])})
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.array([out]), fmt), fmt)
    return np.asarray(case_range(kernel, case)["out"].refused(bits)[0])


def every_bf16(form: str) -> tuple[torch.Tensor, OutputRange]:
    """Every finite bf16 value and what GELU may give for it."""
    kernel = find("gelu", "once", {"form": form})
    values = formats.decode(np.arange(1 << 16, dtype=np.uint16), formats.get("bf16"))
    x = values[np.isfinite(values)].reshape(2, -1)
    case = make_case(kernel, {"rows": 2, "n": x.shape[1]}, {"x": x})
    tensor = torch.from_numpy(case.operands["x"].view(np.int16)).view(torch.bfloat16)
    return tensor, case_range(kernel, case)["out"]


def bits_of(y: torch.Tensor) -> NDArray[np.uint16]:
    return y.view(torch.int16).numpy().view(np.uint16)


# ---- literal values


@pytest.mark.parametrize("profile", ["float32", "once"])
def test_large_arguments_stay_finite(profile: str) -> None:
    right = [-0.0, -0.0, -0.0, -7.42688186092153e-43, 0.0, 10.5, 13.5, 100.0, 1e4]
    nan = [math.nan if abs(x) > 10.0 else x for x in LARGE]
    positive = [math.nan if x > 10.0 else y for x, y in zip(LARGE, right, strict=True)]
    assert not refused(profile, "tanh", LARGE, right).any()
    assert refused(profile, "tanh", LARGE, nan).sum() == 8
    assert refused(profile, "tanh", LARGE, positive).sum() == 4


def test_each_form_is_its_own() -> None:
    assert not refused("float32", "tanh", NEAR, NEAR_TANH).any()
    assert not refused("float32", "erf", NEAR, NEAR_ERF).any()
    assert refused("float32", "tanh", NEAR, NEAR_ERF).all()
    assert refused("float32", "erf", NEAR, NEAR_TANH).all()


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_zeros_keep_their_sign(form: str) -> None:
    assert not refused("once", form, [0.0, -0.0], [0.0, -0.0]).any()
    assert refused("once", form, [0.0, -0.0], [-0.0, 0.0]).all()


def test_nan_and_infinity() -> None:
    x = [math.inf, math.nan, -math.inf]
    assert not refused("once", "tanh", x, [math.inf, math.nan, math.nan]).any()
    assert refused("once", "tanh", x, [math.nan, 1.0, 1.0])[:2].all()


# ---- every finite bf16 value


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_torch_is_allowed_on_every_finite_bf16(form: str) -> None:
    x, out = every_bf16(form)
    assert not out.refused(bits_of(functional_gelu(x, form=form))).any()
    assert not out.refused(bits_of(gelu_torch(x, form=form))).any()


@pytest.mark.parametrize(("form", "other"), [("tanh", "erf"), ("erf", "tanh")])
def test_torch_in_the_other_form_is_refused(form: str, other: str) -> None:
    x, out = every_bf16(form)
    # the forms differ where |x| is between 0.2 and 4: 500 values of each sign, a third of them seen in bf16
    assert out.refused(bits_of(functional_gelu(x, form=other))).sum() > 200


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_positive_arguments_have_one_value(form: str) -> None:
    x, out = every_bf16(form)
    usual = ((x > 2.0**-100) & (x < 2.0**100)).numpy()
    assert out.one_value()[usual].mean() > 0.999


# ---- the error function


def test_erf_agrees_with_mpmath() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-6.5, 6.5, 1000), np.exp2(rng.uniform(-40, 2.7, 1000))])
    with mpmath.workprec(120):
        true = np.array([mpmath.erf(mpmath.mpf(float(v))) for v in x])
        error = np.array(
            [
                abs((mpmath.mpf(float(y)) - t) / t)
                for y, t in zip(functions.erf(x), true, strict=True)
            ],
            dtype=np.float64,
        )
    # 2^-20 of an fp32 ulp, the slack that the range reading adds, is 2^-44
    assert error.max() < 2.0**-44


def test_erf_of_specials() -> None:
    y = functions.erf(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 7.0, -7.0]))
    assert y[:4].tolist() == [0.0, 0.0, 1.0, -1.0]
    assert np.signbit(y[:2]).tolist() == [False, True]
    assert np.isnan(y[4])
    assert y[5:].tolist() == [1.0, -1.0]
