"""RMS norm: literal cases, the faults they refuse, and agreement with transformers' modules bit for bit."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from contract import formats
from contract.case import Kernel, make_case
from contract.kernels.rms_norm import rms_norm, rms_norm_torch
from contract.ranges import case_range


def refused(profile: str, gain: str, x: object, weight: object, out: object, eps: float) -> int:
    """How many of these outputs the contract refuses."""
    kernel = Kernel(rms_norm, {"gain": gain}, rms_norm.profile(profile))
    x = np.asarray(x, np.float64)
    shape = {"rows": x.shape[0], "d": x.shape[1]}
    case = make_case(
        kernel, shape, {"x": x, "weight": np.asarray(weight, np.float64)}, {"eps": eps}
    )
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


def test_a_row_of_equal_values_is_the_weight() -> None:
    x, weight = [[300.0] * 64, [4096.0] * 64], [0.75] * 64
    assert refused("float32", "w", x, weight, [[0.75] * 64] * 2, 1e-6) == 0
    # fp16 squares overflow, and the inverse is 0
    assert refused("float32", "w", x, weight, np.zeros((2, 64)), 1e-6) == 128


def test_one_plus_weight_is_formed_in_fp32() -> None:
    x, weight = [[1.0, 2.0, 3.0, 4.0]], [0.0107421875] * 4
    right = [[0.369140625, 0.73828125, 1.109375, 1.4765625]]
    in_bf16 = [[0.3671875, 0.734375, 1.1015625, 1.46875]]
    assert refused("once", "1+w", x, weight, right, 1e-6) == 0
    assert refused("once", "1+w", x, weight, in_bf16, 1e-6) == 4


def test_one_rounding_is_not_two() -> None:
    x, weight = [[1.0, -0.5, -3.5, -1.0]], [1.8046875, 1.8125, 1.96875, 1.1796875]
    once = [[0.94921875, -0.4765625, -3.625, -0.62109375]]
    two_step = [[0.9453125, -0.474609375, -3.609375, -0.6171875]]
    assert refused("once", "w", x, weight, once, 1e-6) == 0
    assert refused("two_step", "w", x, weight, two_step, 1e-6) == 0
    assert refused("once", "w", x, weight, two_step, 1e-6) == 4
    assert refused("two_step", "w", x, weight, once, 1e-6) == 4


def test_eps_holds_rows_of_zeros_and_of_small_values() -> None:
    x = np.array([[0, 0, 0, 0], [1e-4, 1e-4, -1e-4, 1e-4], [1e-7, -1e-7, 1e-7, -1e-7]], np.float32)
    right = x.astype(np.float64) / np.sqrt(np.square(x, dtype=np.float64).mean(-1)[:, None] + 1e-5)
    assert refused("float32", "w", x, np.ones(4), right, 1e-5) == 0
    without = np.array([[np.nan] * 4, [1.0, 1.0, -1.0, 1.0], [1.0, -1.0, 1.0, -1.0]])
    assert refused("float32", "w", x, np.ones(4), without, 1e-5) == 12
    assert refused("float32", "w", x, np.ones(4), np.nan_to_num(without), 1e-5) == 8


def test_a_row_of_odd_width_keeps_to_itself() -> None:
    x = np.arange(3 * 517).reshape(3, 517) * 7 % 17 - 8.0
    right = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
    spill, short = right.copy(), right.copy()
    spill[1:, 0], short[:, -1] = 0.0, 0.0
    assert refused("float32", "w", x, np.ones(517), right, 1e-6) == 0
    assert refused("float32", "w", x, np.ones(517), spill, 1e-6) == np.count_nonzero(right[1:, 0])
    assert refused("float32", "w", x, np.ones(517), short, 1e-6) == np.count_nonzero(right[:, -1])


MODULES = [
    ("gemma.modeling_gemma", "GemmaRMSNorm", "once", "1+w"),
    ("gemma4.modeling_gemma4", "Gemma4RMSNorm", "once", "w"),
    ("qwen3.modeling_qwen3", "Qwen3RMSNorm", "two_step", "w"),
    ("llama.modeling_llama", "LlamaRMSNorm", "two_step", "w"),
]


@pytest.mark.parametrize(("module", "name", "profile", "gain"), MODULES)
def test_the_torch_kernel_is_the_module_bit_for_bit(
    module: str, name: str, profile: str, gain: str
) -> None:
    pytest.importorskip("transformers")
    import torch

    norm = getattr(importlib.import_module(f"transformers.models.{module}"), name)(257, eps=1e-6)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 257, generator=generator).bfloat16()
    weight = torch.randn(257, generator=generator).bfloat16()
    norm.weight = torch.nn.Parameter(weight, requires_grad=False)
    ours = rms_norm_torch(x, weight, eps=1e-6, gain=gain, profile=profile)
    differ = int((ours.view(torch.int16) != norm(x).view(torch.int16)).sum())
    # Gemma 4 takes the inverse root as a power: within the 2 ulps of rsqrt, not always its bits
    assert differ <= (4 if name == "Gemma4RMSNorm" else 0)
    other = "two_step" if profile == "once" else "once"
    moved = rms_norm_torch(x, weight, eps=1e-6, gain=gain, profile=other)
    assert int((moved.view(torch.int16) != norm(x).view(torch.int16)).sum()) > 1000


def test_specials_stay_in_their_row() -> None:
    """A NaN makes its row NaN; an infinity leaves zeros of their sign beside it."""
    nan, inf = np.nan, np.inf
    x = [[1.0, nan, -1.0, 0.0], [1.0, inf, -1.0, 0.0]]
    assert refused("once", "w", x, np.ones(4), [[nan] * 4, [0.0, nan, -0.0, 0.0]], 1e-6) == 0
    assert refused("once", "w", x, np.ones(4), [[0.0] * 4, [0.0, 0.0, -0.0, 0.0]], 1e-6) == 5
