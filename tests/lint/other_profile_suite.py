"""Planted RMS norms for tests/test_lint.py: one that is red for its roundings, and one whose fault they are."""

import torch

import contract


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
