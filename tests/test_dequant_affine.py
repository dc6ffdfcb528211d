"""Affine dequantisation: literal groups at every width, both profiles, and the faults that the contract refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import contract
from contract.errors import NotAllowed
from contract.kernels.affine_packing import WIDTHS, pack
from contract.kernels.dequant_affine import dequant_affine_torch


def judge(out: Any, codes: Any, scales: Any, biases: Any, bits: int, profile: str = "once") -> None:
    contract.assert_allowed(
        "dequant_affine",
        torch.as_tensor(out).bfloat16(),
        words=pack(torch.as_tensor(codes), bits),
        scales=torch.tensor(scales).bfloat16(),
        biases=torch.tensor(biases).bfloat16(),
        bits=str(bits),
        profile=profile,
    )


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_group_has_a_scale_and_a_bias(bits: int) -> None:
    codes = (11 * torch.arange(96) + 1)[None] % (1 << bits)
    scales, biases = [[1.0, 2.0, -0.5]], [[0.0, -1.0, 3.0]]
    right = torch.cat([codes[0, :32], 2 * codes[0, 32:64] - 1, 3 - 0.5 * codes[0, 64:]])[None]
    judge(right, codes, scales, biases, bits)
    s, b = (torch.tensor(v).repeat_interleave(32, -1) for v in (scales, biases))
    for wrong in (
        codes * s,
        codes * s - b,
        (codes + b) * s,
        codes * s.roll(-32, -1) + b,
        codes * s.roll(1, -1) + b,
        (codes - (1 << (bits - 1))) * s + b,
        right.flip(-1),
    ):
        with pytest.raises(NotAllowed):
            judge(wrong, codes, scales, biases, bits)


def test_the_product_is_rounded_on_its_own_under_each_op() -> None:
    # 7 s = 0.0726318359375 -> 0.07275390625; b = -0.0703125 leaves 0.0023193359375 or 0.00244140625
    given = ([[7] * 32], [[0.0103759765625]], [[-0.0703125]], 4)
    once, each = torch.full((1, 32), 0.0023193359375), torch.full((1, 32), 0.00244140625)
    judge(once, *given)
    judge(each, *given, profile="each_op")
    for out, profile in ((each, "once"), (once, "each_op")):
        with pytest.raises(NotAllowed):
            judge(out, *given, profile=profile)


@pytest.mark.parametrize("bits", WIDTHS)
def test_torch_is_the_correctly_rounded_value(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = torch.from_numpy(rng.integers(0, 1 << bits, (6, 256)))
    scales, biases = (torch.from_numpy(rng.standard_normal((6, 2))).bfloat16() for _ in range(2))
    out = dequant_affine_torch(pack(codes, bits), scales, biases, bits=str(bits), profile="once")
    s, b = (t.double().repeat_interleave(128, -1) for t in (scales, biases))
    assert out.equal((codes * s + b).float().bfloat16())
