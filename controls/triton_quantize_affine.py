"""Planted affine quantisers in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.quantize_affine import groups_kernel, launch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")


@jit
def faulty(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    scale_at: tl.tensor,
    bias_at: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    TOP: tl.constexpr,
    GROUP: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes, scale and bias of BLOCK groups."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, GROUP)
    mask = (row < rows)[:, None]
    x = tl.load(x_at + row[:, None] * x_row + column[None, :], mask, other=0.0).to(tl.float32)
    low, high = tl.min(x, 1), tl.max(x, 1)
    step = tl.maximum(tl.math.div_rn(high - low, tl.full(low.shape, TOP, tl.float32)), 1e-7)
    lower = tl.abs(low) > tl.abs(high)
    edge = tl.where(lower, low, high)
    step = tl.where(lower, step, step if FAULT == "sign" else -step)
    whole = libdevice.rint(tl.math.div_rn(edge, step))
    some = whole != 0
    scale = tl.where(some, tl.math.div_rn(edge, tl.where(some, whole, 1.0)), step)
    bias = tl.where(some, edge, 0.0)
    used = scale
    if FAULT == "stored":
        used = scale.to(scale_at.dtype.element_ty).to(tl.float32)
    quotient = tl.math.div_rn(x - bias[:, None], tl.broadcast_to(used[:, None], x.shape))
    held = tl.minimum(tl.maximum(quotient, 0.0), TOP)
    code = libdevice.float2int_rz(held) if FAULT == "cut" else libdevice.float2int_rn(held)
    tl.store(codes_at + row[:, None] * codes_row + column[None, :], code.to(tl.uint8), mask)
    tl.store(scale_at + row, scale.to(scale_at.dtype.element_ty), row < rows)
    tl.store(bias_at + row, bias.to(bias_at.dtype.element_ty), row < rows)


@red("quantize_affine", profile="after_codes", gate="exact", bits="4", **TRITON)
def triton_codes_of_stored_scales(
    x: torch.Tensor, *, bits: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The scale is rounded to bf16 before the codes are made."""
    return launch(faulty, x, bits, FAULT="stored")


@red("quantize_affine", profile="after_codes", gate="exact", bits="4", **TRITON)
def triton_codes_toward_zero(
    x: torch.Tensor, *, bits: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """cvt.rzi in place of cvt.rni."""
    return launch(faulty, x, bits, FAULT="cut")


@red("quantize_affine", profile="after_codes", gate="exact", bits="4", **TRITON)
def triton_step_always_positive(
    x: torch.Tensor, *, bits: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes count up from the larger end where they must count down."""
    return launch(faulty, x, bits, FAULT="sign")


@green("quantize_affine", profile="after_codes", bits="4", **TRITON)
def triton_one_warp(
    x: torch.Tensor, *, bits: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Another division of the groups."""
    return launch(groups_kernel, x, bits, num_warps=1)
