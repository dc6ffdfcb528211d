"""Planted RMS norms in Triton: one fault a kernel, chosen at compile time, and other launches of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON, half_of_lanes, truncated
from contract.engines.deferred_jit import jit
from contract.kernels.triton.rms_norm import rms_norm_kernel
from contract.kernels.triton.row_tiles import row_tile
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row, rounded once, gain w."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < d
    start = x + row * (d if FAULT == "stride" else x_stride)
    if FAULT == "mask":
        wide = tl.load(start + column).to(tl.float32)
    else:
        wide = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    if FAULT == "lanes":
        total = half_of_lanes(wide * wide, 1, BLOCK)
    elif FAULT == "accumulator":
        total = tl.sum((wide * wide).to(tl.bfloat16), 1, keep_dims=True).to(tl.float32)
    else:
        total = tl.sum(wide * wide, 1, keep_dims=True)
    result = wide * tl.rsqrt(total * inverse_d + eps)
    result = result * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    stored = truncated(result) if FAULT == "store" else result.to(tl.bfloat16)
    tl.store(out + row * d + column, stored, mask=inside)


def faulty(x: torch.Tensor, weight: torch.Tensor, eps: float, fault: str) -> torch.Tensor:
    """One program a row, with that fault."""
    rows, d = x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    block = max(2, row_tile(d)["BLOCK"])
    faulty_kernel[(rows,)](
        x, weight, out, d, x.stride(0), 1.0 / d, eps, FAULT=fault, BLOCK=block, num_warps=4
    )
    return out


@red("rms_norm", profile="once", gate="shapes", name="triton.row_stride", gain="w", **TRITON)
def row_stride(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Rows are found by the width, where they have gaps too."""
    return faulty(x, weight, eps, "stride")


@red("rms_norm", profile="once", gate="shapes", name="triton.mask_dropped", gain="w", **TRITON)
def mask_dropped(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """What lies behind a row goes into its sum."""
    return faulty(x, weight, eps, "mask")


@red("rms_norm", profile="once", gate="shapes", name="triton.missing_shuffle", gain="w", **TRITON)
def missing_shuffle(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Half of the lanes do not reach the sum."""
    return faulty(x, weight, eps, "lanes")


@red("rms_norm", profile="once", gate="exact", name="triton.bf16_sum", gain="w", **TRITON)
def bf16_sum(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The squares are summed in bf16, as tl.sum of bf16 compiles."""
    return faulty(x, weight, eps, "accumulator")


@red("rms_norm", profile="once", gate="exact", name="triton.truncated_store", gain="w", **TRITON)
def truncated_store(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The result is cut off to bf16."""
    return faulty(x, weight, eps, "store")


@green("rms_norm", profile=("once", "two_step"), name="triton.one_warp", gain="w", **TRITON)
def one_warp(x: torch.Tensor, weight: torch.Tensor, *, eps: float, profile: str) -> torch.Tensor:
    """One warp and a tile twice as wide: another tree of the sum."""
    rows, d = x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    two_step = profile == "two_step"
    rms_norm_kernel[(rows,)](
        x, weight, out, rows, d, x.stride(0), d, 1.0 / d, eps,
        GAIN="w", TWO_STEP=two_step, ROWS=1, BLOCK=2 * row_tile(d)["BLOCK"], num_warps=1,
    )  # fmt: skip
    return out
