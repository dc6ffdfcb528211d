"""Linear layers with affine weights: literal products, the dequantiser, groups, overflow, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import contract
from contract.errors import CaseError, NotAllowed
from contract.kernels.affine_packing import WIDTHS, pack
from contract.kernels.dequant_affine import dequant_affine_torch
from contract.kernels.qlinear_affine import qlinear_affine_torch


def weight(bits: int, codes: Any, scales: Any, biases: Any) -> dict[str, Any]:
    return {
        "words": pack(torch.as_tensor(codes), bits),
        "scales": torch.tensor(scales).bfloat16(),
        "biases": torch.tensor(biases).bfloat16(),
    }


def judge(out: Any, x: Any, given: dict[str, Any], **more: Any) -> None:
    tensors = {"x": torch.as_tensor(x).bfloat16(), **given}
    contract.assert_allowed("qlinear_affine", torch.as_tensor(out).bfloat16(), **tensors, **more)


@pytest.mark.parametrize("profile", ["dequantised", "fused"])
def test_value_k_uses_scale_k_over_group(profile: str) -> None:
    # 256 ones, four groups of 64: 64 (1 + 10 + 100 + 1000) = 71104 -> 71168 in bf16
    given = weight(4, [[1] * 256], [[1.0, 10.0, 100.0, 1000.0]], [[0.0] * 4])
    judge([[71104.0]], [[1.0] * 256], given, profile=profile)
    # all of the first group; one scale for each tile of 32; the neighbour's would not show in a sum of ones
    for wrong in (256.0, 32.0 * (1 + 10 + 100 + 5 * 1000)):
        with pytest.raises(NotAllowed):
            judge([[wrong]], [[1.0] * 256], given, profile=profile)
    x = torch.ones(1, 256)
    x[0, :64] = -1.0
    judge([[70976.0]], x, given, profile=profile)
    with pytest.raises(NotAllowed):
        judge([[64.0 * (1 - 10 + 100 + 1000)]], x, given, profile=profile)


def test_weights_are_rounded_or_not() -> None:
    # 15 * 17 + 2 = 257 -> 256 in bf16
    given = weight(4, [[15] + [0] * 31], [[17.0]], [[2.0]])
    x = [[1.0] + [0.0] * 31]
    # 257 is rounded to 256 in the end, too; -1 times 256 tells
    x[0][1] = -128.0
    judge([[256.0 - 256.0]], x, given, profile="dequantised")
    judge([[257.0 - 256.0]], x, given, profile="fused")
    for out, profile in ((1.0, "dequantised"), (0.0, "fused")):
        with pytest.raises(NotAllowed):
            judge([[out]], x, given, profile=profile)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_torch_kernel_multiplies_by_the_dequantised_weight(bits: int) -> None:
    rng = np.random.default_rng(bits)
    given = weight(bits, rng.integers(0, 1 << bits, (70, 128)), np.ones((70, 2)).tolist(),
                   rng.integers(-8, 8, (70, 2)).astype(float).tolist())  # fmt: skip
    x = torch.from_numpy(rng.integers(-3, 4, (5, 128))).bfloat16()
    w = dequant_affine_torch(**given, bits=str(bits), profile="once")
    out = qlinear_affine_torch(x, **given, bits=str(bits), profile="dequantised")
    # integers: every order is exact
    assert out.equal((x.double() @ w.double().T).float().bfloat16())
    contract.assert_allowed("qlinear_affine", out, x=x, **given, bits=str(bits))


def test_scales_may_be_taken_out_of_a_groups_sum() -> None:
    # 32 * 15 * 2^120 overflows fp32; times the scale 2^-20 it does not
    given = weight(4, [[15] * 32], [[2.0**-20]], [[0.0]])
    x = [[2.0**120] * 32]
    for out in (float("inf"), 480.0 * 2.0**100):
        judge([[out]], x, given, profile="fused")
    with pytest.raises(NotAllowed):
        judge([[float("inf")]], x, given, profile="dequantised")


def test_weights_of_another_width_are_refused() -> None:
    given = weight(4, [[1] * 64], [[1.0, 1.0]], [[0.0, 0.0]])
    x = torch.ones(1, 96).bfloat16()
    with pytest.raises(
        ValueError, match=re.escape("8 words a row; 96 columns of 4-bit codes are 12")
    ):
        qlinear_affine_torch(x, **given, bits="4", profile="fused")
    with pytest.raises(ValueError, match="groups are of 32, 64, 128"):
        qlinear_affine_torch(
            x[:, :64], given["words"], torch.ones(1, 4).bfloat16(), given["biases"],
            bits="4", profile="fused",
        )  # fmt: skip
    with pytest.raises(CaseError, match=r"words = 8, sizes .* need 12"):
        judge([[0.0]], x, given)
