"""Gated RMS norm: literal cases and agreement with transformers' module bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from contract import formats
from contract.case import Kernel, make_case
from contract.kernels.rms_norm_gated import rms_norm_gated, rms_norm_gated_torch
from contract.ranges import case_range


def refused(profile: str, x: object, gate: object, weight: object, out: object) -> list[bool]:
    """Which of these outputs the contract refuses, eps 1e-6."""
    kernel = Kernel(rms_norm_gated, {}, rms_norm_gated.profile(profile))
    values = {
        k: np.asarray(v, np.float64) for k, v in {"x": x, "gate": gate, "weight": weight}.items()
    }
    shape = {"rows": values["x"].shape[0], "d": values["x"].shape[1]}
    case = make_case(kernel, shape, values, {"eps": 1e-6})
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), "bf16"), "bf16")
    found: list[bool] = case_range(kernel, case)["out"].refused(bits).ravel().tolist()
    return found


def test_a_gate_of_zero_closes_and_a_large_one_multiplies() -> None:
    x, gate, weight = [[1.0, -1.0, 1.0, 1.0]], [[0.0, 32.0, 64.0, -128.0]], [1.0, 1.5, 0.75, 2.0]
    assert refused("three_step", x, gate, weight, [[0.0, -48.0, 48.0, -0.0]]) == [False] * 4
    # a sigmoid has no factor z
    assert refused("three_step", x, gate, weight, [[0.5, -1.5, 0.75, 0.0]]) == [True] * 4


def test_each_rounding_is_seen() -> None:
    x, gate = (
        [[1.9921875, 0.279296875, -0.142578125, -0.28125]],
        [[0.0244140625, -0.625, 1.734375, -0.921875]],
    )
    weight = [1.2109375, 1.0859375, 1.1484375, 1.25]
    three_step = [[0.0291748046875, -0.064453125, -0.236328125, 0.09033203125]]
    once = [[0.029296875, -0.06494140625, -0.2373046875, 0.0908203125]]
    silu_rounded = [[0.029052734375, -0.064453125, -0.236328125, 0.08984375]]
    assert refused("three_step", x, gate, weight, three_step) == [False] * 4
    assert refused("once", x, gate, weight, once) == [False] * 4
    assert refused("three_step", x, gate, weight, once) == [True] * 4
    assert refused("once", x, gate, weight, three_step) == [True] * 4
    assert refused("three_step", x, gate, weight, silu_rounded) == [True, False, False, True]


def test_the_torch_kernel_is_the_module_bit_for_bit() -> None:
    pytest.importorskip("transformers")
    import torch
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

    generator = torch.Generator().manual_seed(0)
    x, gate = (torch.randn(64, 128, generator=generator).bfloat16() for _ in range(2))
    norm = Qwen3_5RMSNormGated(128, eps=1e-6)
    norm.weight.data = torch.randn(128, generator=generator).bfloat16()
    theirs = norm(x, gate).detach().view(torch.int16)
    ours = rms_norm_gated_torch(x, gate, norm.weight.detach(), eps=1e-6, profile="three_step")
    assert torch.equal(ours.view(torch.int16), theirs)
    once = rms_norm_gated_torch(x, gate, norm.weight.detach(), eps=1e-6, profile="once")
    assert int((once.view(torch.int16) != theirs).sum()) > 1000
