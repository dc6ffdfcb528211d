"""Affine codes of groups of weights, as MLX forms them: a Triton kernel, sixteen groups a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")

#: Groups of a program.
GROUPS = 16


@jit
def groups_kernel(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    scale_at: tl.tensor,
    bias_at: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    TOP: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes, scale and bias of BLOCK groups; TOP is the largest code."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, GROUP)
    mask = (row < rows)[:, None]
    x = tl.load(x_at + row[:, None] * x_row + column[None, :], mask, other=0.0).to(tl.float32)
    low, high = tl.min(x, 1), tl.max(x, 1)
    top = tl.full(low.shape, TOP, tl.float32)
    step = tl.maximum(tl.math.div_rn(high - low, top), 1e-7)
    lower = tl.abs(low) > tl.abs(high)
    edge = tl.where(lower, low, high)
    step = tl.where(lower, step, -step)
    whole = libdevice.rint(tl.math.div_rn(edge, step))
    some = whole != 0
    # 1 keeps the quotient that is not taken finite
    scale = tl.where(some, tl.math.div_rn(edge, tl.where(some, whole, 1.0)), step)
    bias = tl.where(some, edge, 0.0)
    quotient = tl.math.div_rn(x - bias[:, None], tl.broadcast_to(scale[:, None], x.shape))
    code = libdevice.rint(tl.minimum(tl.maximum(quotient, 0.0), TOP)).to(tl.int32)
    tl.store(codes_at + row[:, None] * codes_row + column[None, :], code.to(tl.uint8), mask)
    tl.store(scale_at + row, scale.to(scale_at.dtype.element_ty), row < rows)
    tl.store(bias_at + row, bias.to(bias_at.dtype.element_ty), row < rows)


@implementation(
    "quantize_affine",
    name="triton",
    profile=("after_codes", "after_codes_fp16"),
    engine="ptx",
    requires=("triton",),
)
def quantize_affine(
    x: torch.Tensor, *, bits: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One launch; scale and bias are rounded when the codes are there."""
    return launch(groups_kernel, x, bits)


def launch(
    kernel: Any, x: torch.Tensor, bits: str, **more: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel, or another with its arguments, over all groups; a group's values lie side by side.

    Raises:
        ValueError: groups that are not of 32, 64 or 128 values.
    """
    rows, group = x.shape
    if group not in (32, 64, 128):
        raise ValueError(f"groups of {group}; groups are of 32, 64 or 128 values")
    codes = torch.empty((rows, group), dtype=torch.uint8, device=x.device)
    scale = torch.empty(rows, dtype=x.dtype, device=x.device)
    bias = torch.empty(rows, dtype=x.dtype, device=x.device)
    kernel[(-(-rows // GROUPS),)](
        x, codes, scale, bias, rows, x.stride(0), codes.stride(0),
        TOP=(1 << int(bits)) - 1, GROUP=group, BLOCK=GROUPS, **more,
    )  # fmt: skip
    return codes, scale, bias
