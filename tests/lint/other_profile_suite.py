"""Planted kernels for tests/test_lint.py: one that is red for its roundings, and others whose fault is what is seen."""

import torch

import contract
from contract.controls.add_rms_tail import branch_not_rounded
from contract.controls.w8_gemv import fp16_accumulator


def gained(x: torch.Tensor, mean: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """One rounding at the end: that is profile `once`."""
    return (x.float() * torch.rsqrt(mean + eps) * weight.float()).to(x.dtype)


@contract.red("rms_norm", profile="two_step", gate="exact", gain="w")
def squares_in_bf16_rounded_once(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    return gained(x, x.square().float().mean(-1, keepdim=True), weight, eps)


@contract.red("rms_norm", profile="two_step", gate="exact", gain="w")
def normed_kept_in_fp32(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    return gained(x, x.float().square().mean(-1, keepdim=True), weight, eps)


contract.red(
    "add_rms_tail", profile="each", gate="exact", name="again", branch_norm="yes", scale="no"
)(branch_not_rounded)
contract.red("w8_gemv", profile="kept", gate="exact", name="again")(fp16_accumulator)
