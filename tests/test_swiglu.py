"""SwiGLU: literal values, the deep negative tail, and what tells the profiles apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract import autocontrols, formats
from contract.case import Case, find, make_case
from contract.kernels.clients.torch_activations import functional_swiglu
from contract.kernels.swiglu import swiglu_torch
from contract.ranges import case_range

BF16_PROFILES = ("two_step", "each_op", "once")
GATE = [2.390625, 2.84375, -0.90625, 2.296875, -1.15625, 1.890625]
UP = [1.90625, -1.7421875, -3.625, 3.546875, -3.875, 0.451171875]
ONCE = [4.1875, -4.6875, 0.9453125, 7.40625, 1.0703125, 0.7421875]
TWO = [4.15625, -4.6875, 0.94921875, 7.4375, 1.078125, 0.73828125]
DEEP = [-80.0, -87.0, -87.5, -88.0, -88.5]
DEEP_SILU = [-1.4438811102763322e-33, -1.4318559450415782e-36, -8.734557064248092e-37,
             -5.328049667953044e-37, -3.249986988494812e-37]  # fmt: skip


def refused(
    profile: str, gate: list[float], up: list[float], out: list[float]
) -> NDArray[np.bool_]:
    """Where the contract does not allow these outputs; they are rounded to the output's format first."""
    kernel = find("swiglu", profile)
    values = {"gate": np.array([gate]), "up": np.array([up])}
    case = make_case(kernel, {"rows": 1, "n": len(gate)}, values)
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.array([out]), fmt), fmt)
    return np.asarray(case_range(kernel, case)["out"].refused(bits)[0])


def finite_bf16() -> NDArray[np.float64]:
    values = formats.decode(np.arange(1 << 16, dtype=np.uint16), formats.get("bf16"))
    return np.asarray(values[np.isfinite(values)])


def case_of(profile: str, gate: NDArray[np.float64]) -> tuple[Case, Any]:
    """A case of these gates with N(0, 1) in up, and its range."""
    kernel = find("swiglu", profile)
    up = np.random.default_rng(7).standard_normal(gate.shape)
    case = make_case(kernel, {"rows": gate.shape[0], "n": gate.shape[1]}, {"gate": gate, "up": up})
    return case, case_range(kernel, case)["out"]


def run(case: Case, call: Any, **more: Any) -> NDArray[np.uint16]:
    operands = {
        name: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        for name, bits in case.operands.items()
    }
    bits: NDArray[np.uint16] = call(**operands, **more).view(torch.int16).numpy().view(np.uint16)
    return bits


# ---- literal values


def test_one_rounding_is_not_two() -> None:
    assert not refused("once", GATE, UP, ONCE).any()
    assert not refused("two_step", GATE, UP, TWO).any()
    differ = np.array(ONCE) != np.array(TWO)
    assert differ.sum() == 5
    assert (refused("once", GATE, UP, TWO) == differ).all()
    assert (refused("two_step", GATE, UP, ONCE) == differ).all()


def test_mlx_rounds_exponential_and_sigmoid() -> None:
    # nn.silu of mlx-cpu 0.32.4 in bf16 (2026-11-29); its sigmoid of 2^-7 (1 + 2^-7) is 0.5, torch's 0.50390625
    gate, mlx = (
        [0.00787353515625, 1.5, -1.5, 3.0],
        [0.003936767578125, 1.2265625, -0.2734375, 2.859375],
    )
    assert not refused("each_op", gate, [1.0] * 4, mlx).any()
    assert refused("two_step", gate, [1.0] * 4, mlx)[0]


def test_silu_acts_on_the_first_half_only() -> None:
    gate, up = [1.0, -1.0, 2.0], [10.0, 20.0, 30.0]
    right = [7.310585786300049, -5.3788284273999025, 52.847824678672936]
    up_first = [9.999546021312975, -19.999999958776925, 59.999999999994394]
    interleaved = [-0.7310585786300049, 17.615941559557648, 599.9999987633078]
    assert not refused("float32", gate, up, right).any()
    assert refused("float32", gate, up, up_first).all()
    assert refused("float32", gate, up, interleaved).all()


def test_deep_negative_arguments_keep_their_size() -> None:
    zeroed = [-1.4438811102763322e-33, -1.4318559450415782e-36, -0.0, -0.0, -0.0]
    assert not refused("float32", DEEP, [1.0] * 5, DEEP_SILU).any()
    assert refused("float32", DEEP, [1.0] * 5, zeroed).tolist() == [False] * 2 + [True] * 3


def test_the_sigmoid_as_a_factor_is_allowed() -> None:
    # while it is a normal number: at -88 it is 2^-127, and a flush may take it
    gate = np.array(DEEP[:2] + GATE)
    with np.errstate(over="ignore"):
        sigmoid = np.float32(1.0) / (np.float32(1.0) + np.exp(-gate.astype(np.float32)))
    out = (gate.astype(np.float32) * sigmoid).astype(np.float64)
    assert not refused("float32", gate.tolist(), [1.0] * len(gate), out.tolist()).any()


# ---- profiles


@pytest.mark.parametrize("profile", BF16_PROFILES)
def test_torch_is_allowed_on_every_finite_bf16_gate(profile: str) -> None:
    case, out = case_of(profile, finite_bf16().reshape(2, -1))
    assert not out.refused(run(case, swiglu_torch, profile=profile)).any()


def test_functional_silu_is_two_steps() -> None:
    case, out = case_of("two_step", finite_bf16().reshape(2, -1))
    assert not out.refused(run(case, functional_swiglu)).any()


@pytest.mark.parametrize("profile", BF16_PROFILES)
def test_each_profile_refuses_the_others(profile: str) -> None:
    case, out = case_of(profile, np.random.default_rng(3).standard_normal((8, 2048)))
    for other in set(BF16_PROFILES) - {profile}:
        assert out.refused(run(case, swiglu_torch, profile=other)).mean() > 0.05


def test_no_gate_tells_the_folded_form_from_the_plain_one() -> None:
    kernel = find("swiglu", "two_step")
    gate = finite_bf16().reshape(2, -1)
    case = make_case(
        kernel, {"rows": 2, "n": gate.shape[1]}, {"gate": gate, "up": np.ones(gate.shape)}
    )
    folded = autocontrols.nominal(kernel, case, options={"form": "folded"})["out"]
    assert not case_range(kernel, case)["out"].refused(folded).any()
