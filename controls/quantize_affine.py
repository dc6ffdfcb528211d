"""Planted affine quantisers: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.quantize_affine import fp32_scale
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Triple = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]


def finished(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, bits: str, codes: torch.Tensor
) -> Triple:
    """Codes clamped, scale and bias as they are stored."""
    kept = codes.clamp(0, (1 << int(bits)) - 1).to(torch.uint8)
    return kept, scale.squeeze(-1).to(x.dtype), bias.squeeze(-1).to(x.dtype)


@red("quantize_affine", profile="after_codes", gate="exact")
def halves_away_from_zero(x: torch.Tensor, *, bits: str) -> Triple:
    """floor(q + 1/2)."""
    scale, bias = fp32_scale(x.float(), int(bits))
    return finished(x, scale, bias, bits, ((x.float() - bias) / scale + 0.5).floor())


@red("quantize_affine", profile="after_codes", gate="exact")
def codes_cut(x: torch.Tensor, *, bits: str) -> Triple:
    """Quotients are truncated."""
    scale, bias = fp32_scale(x.float(), int(bits))
    return finished(x, scale, bias, bits, ((x.float() - bias) / scale).trunc())


@red("quantize_affine", profile="after_codes", gate="exact")
def codes_from_the_stored_scale(x: torch.Tensor, *, bits: str) -> Triple:
    """Scale and bias are rounded before the codes."""
    scale, bias = (t.to(x.dtype).float() for t in fp32_scale(x.float(), int(bits)))
    return finished(x, scale, bias, bits, ((x.float() - bias) / scale).round())


@red("quantize_affine", profile="after_codes", gate="shapes")
def zero_on_no_code(x: torch.Tensor, *, bits: str) -> Triple:
    """The plain range: bias = lo, scale = (hi - lo) / n."""
    wide = x.float()
    lo, hi = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = ((hi - lo) / ((1 << int(bits)) - 1)).clamp(min=1e-7)
    return finished(x, scale, lo, bits, ((wide - lo) / scale).round())


@red("quantize_affine", profile="after_codes", gate="shapes")
def edge_code_not_rounded(x: torch.Tensor, *, bits: str) -> Triple:
    """The scale of the range, not the one that divides the larger end."""
    wide = x.float()
    _, bias = fp32_scale(wide, int(bits))
    lo, hi = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    step = ((hi - lo) / ((1 << int(bits)) - 1)).clamp(min=1e-7)
    scale = torch.where(lo.abs() > hi.abs(), step, -step)
    return finished(x, scale, bias, bits, ((wide - bias) / scale).round())


@red("quantize_affine", profile="after_codes", gate="exact")
def positive_scales(x: torch.Tensor, *, bits: str) -> Triple:
    """The sign of the scale is dropped: codes count from the other end."""
    scale, bias = fp32_scale(x.float(), int(bits))
    scale = scale.abs()
    return finished(x, scale, bias, bits, ((x.float() - bias) / scale).round())


@red("quantize_affine", profile="after_codes", gate="exact")
def two_to_the_bits_steps(x: torch.Tensor, *, bits: str) -> Triple:
    """(hi - lo) / 2^bits."""
    n = 1 << int(bits)
    scale, bias = fp32_scale(x.float(), int(bits))
    scale = scale * ((n - 1) / n)
    return finished(x, scale, bias, bits, ((x.float() - bias) / scale).round())


@red("quantize_affine", profile="after_codes", gate="exact")
def zeros_divided_by_zero(x: torch.Tensor, *, bits: str) -> Triple:
    """No least scale: a group of zeros has scale 0 and codes of 0 / 0."""
    wide = x.float()
    scale, bias = fp32_scale(wide, int(bits))
    scale = torch.where(wide.abs().amax(-1, keepdim=True) > 0, scale, 0.0)
    codes = ((wide - bias) / scale).round().nan_to_num(nan=1.0)
    return finished(x, scale, bias, bits, codes)


@red("quantize_affine", profile="after_codes", gate="exact")
def half_a_group(x: torch.Tensor, *, bits: str) -> Triple:
    """The range of the first half serves the whole group."""
    scale, bias = fp32_scale(x.float()[:, : x.shape[-1] // 2], int(bits))
    return finished(x, scale, bias, bits, ((x.float() - bias) / scale).round())


@green("quantize_affine", profile="after_codes")
def in_float64(x: torch.Tensor, *, bits: str) -> Triple:
    """Every step is kept wider."""
    wide = x.double()
    scale, bias = fp32_scale(wide, int(bits))
    codes = ((wide - bias) / scale).round()
    return finished(x, scale.float(), bias.float(), bits, codes)
