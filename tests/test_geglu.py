"""GeGLU: literal values of three engines' roundings, and what tells them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract import formats
from contract.case import Case, find, make_case
from contract.kernels.clients.torch_activations import functional_geglu
from contract.kernels.geglu import HALF, geglu_torch
from contract.ranges import case_range

PROFILES = ("two_step", "each_op", "each_product", "once")
# Arguments at which the cube of two rounded products and that of one power part, with mlx-cpu 0.32.4's
# nn.gelu_approx in bf16 (2026-11-29).
GATE = [0.90625, -0.828125, -0.90625, -2.125]
MLX = [0.7421875, -0.169921875, -0.1650390625, -0.033203125]


def refused(
    profile: str, gate: list[float], up: list[float], out: list[float]
) -> NDArray[np.bool_]:
    """Where the contract does not allow these outputs."""
    kernel = find("geglu", profile)
    values = {"gate": np.array([gate]), "up": np.array([up])}
    case = make_case(kernel, {"rows": 1, "n": len(gate)}, values)
    bf16 = formats.get("bf16")
    bits = formats.encode(formats.round_to(np.array([out]), bf16), bf16)
    return np.asarray(case_range(kernel, case)["out"].refused(bits)[0])


def typical(profile: str, rows: int = 8, n: int = 2048) -> tuple[Case, Any]:
    """A case of N(0, 1) values in gate and up, and its range."""
    rng = np.random.default_rng(7)
    kernel = find("geglu", profile)
    values = {name: rng.standard_normal((rows, n)) for name in ("gate", "up")}
    case = make_case(kernel, {"rows": rows, "n": n}, values)
    return case, case_range(kernel, case)["out"]


def run(case: Case, call: Any, **more: Any) -> NDArray[np.uint16]:
    operands = {
        name: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        for name, bits in case.operands.items()
    }
    bits: NDArray[np.uint16] = call(**operands, **more).view(torch.int16).numpy().view(np.uint16)
    return bits


def test_mlx_values_are_allowed_step_by_step() -> None:
    assert not refused("each_op", GATE, [1.0] * 4, MLX).any()


def test_mlx_values_are_no_single_rounding() -> None:
    assert refused("two_step", GATE, [1.0] * 4, MLX).any()


def test_two_products_are_not_one_power() -> None:
    # with bf16 constants and the cube as R(R(x x) x) the same four arguments give these
    assert refused(
        "each_op", GATE, [1.0] * 4, [0.73828125, -0.16796875, -0.166015625, -0.037353515625]
    ).all()


def test_activation_is_rounded_before_the_product() -> None:
    # gelu(1) = 0.841192 -> 0.83984375; times 1.5 = 1.259766 -> 1.2578125; unrounded 1.261788 -> 1.265625
    assert not refused("two_step", [1.0], [1.5], [1.2578125]).any()
    assert not refused("once", [1.0], [1.5], [1.265625]).any()
    assert refused("two_step", [1.0], [1.5], [1.265625]).all()
    assert refused("once", [1.0], [1.5], [1.2578125]).all()


def test_the_gate_is_activated_and_not_up() -> None:
    # saturated: gelu(16) = 16 and gelu(-16) is a zero or next to it
    assert not refused("two_step", [16.0], [-16.0], [-256.0]).any()
    assert refused("two_step", [16.0], [-16.0], [-0.0]).all()


@pytest.mark.parametrize("profile", PROFILES)
def test_torch_is_allowed_on_typical_data(profile: str) -> None:
    case, out = typical(profile)
    assert not out.refused(run(case, geglu_torch, profile=profile)).any()


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_refuses_the_others(profile: str) -> None:
    case, out = typical(profile)
    for other in set(PROFILES) - {profile}:
        assert out.refused(run(case, geglu_torch, profile=other)).mean() > 0.001


def test_functional_gelu_is_two_steps() -> None:
    case, out = typical("two_step")
    assert not out.refused(run(case, functional_geglu)).any()
    case, out = typical("once")
    assert out.refused(run(case, functional_geglu)).mean() > 0.1


@pytest.mark.parametrize("profile", ["each_op", "each_product"])
def test_steps_leave_one_value(profile: str) -> None:
    _, out = typical(profile)
    assert out.one_value().mean() > 0.9999


@pytest.mark.parametrize("profile", ["two_step", "once"])
def test_fp32_inside_leaves_one_value_nearly_always(profile: str) -> None:
    _, out = typical(profile)
    assert out.one_value().mean() > 0.96


def test_half_is_exact_but_for_subnormals() -> None:
    bf16 = formats.get("bf16")
    x = formats.decode(np.arange(1 << 16, dtype=np.uint16), bf16)
    x = x[np.isfinite(x) & (np.abs(x) >= 2.0**-125)]
    assert np.array_equal(formats.round_to(0.5 * x, bf16), 0.5 * x)
    assert "subnormals" in HALF
