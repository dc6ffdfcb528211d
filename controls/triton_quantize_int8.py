"""Planted int8 quantisers in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.quantize_int8 import codes_of_rows, largest_of, launch
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
    largest_at: tl.tensor,
    codes_at: tl.tensor,
    scale_at: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    TENSOR: tl.constexpr,
    DIVIDE: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes of one row by division."""
    row = tl.program_id(0).to(tl.int64)
    # a row that finds its own maximum has not waited for the others'
    whole = TENSOR and FAULT != "alone"
    if FAULT == "tail":
        most = largest_of(x_at + row * x_row, d - 1, BLOCK)
    elif whole:
        most = largest_of(largest_at, rows, BLOCK)
    else:
        most = largest_of(x_at + row * x_row, d, BLOCK)
    scale = tl.where(most > 0, tl.math.div_rn(most, 127.0), 1.0)
    if TENSOR:
        tl.store(scale_at, scale, row == 0)
    else:
        tl.store(scale_at + row, scale)
    for first in range(0, d, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_at + row * x_row + column, column < d, other=0.0)
        quotient = tl.math.div_rn(x, tl.broadcast_to(scale, x.shape))
        if FAULT == "toward_zero":
            code = libdevice.float2int_rz(quotient)
        else:
            code = libdevice.float2int_rn(quotient)
        code = tl.minimum(tl.maximum(code, -127), 127)
        tl.store(codes_at + row * codes_row + column, code.to(tl.int8), column < d)


@red("quantize_int8", profile="divide", gate="exact", granularity="channel", **TRITON)
def triton_codes_toward_zero(
    x: torch.Tensor, *, granularity: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """cvt.rzi in place of cvt.rni."""
    return launch(faulty, x, granularity, "divide", FAULT="toward_zero")


@red("quantize_int8", profile="divide", gate="stress", granularity="tensor", **TRITON)
def triton_scale_of_the_own_row(
    x: torch.Tensor, *, granularity: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pass over all rows is missing."""
    return launch(faulty, x, granularity, "divide", FAULT="alone")


@red("quantize_int8", profile="divide", gate="stress", granularity="channel", **TRITON)
def triton_last_column_not_looked_at(
    x: torch.Tensor, *, granularity: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum leaves out a row's last value."""
    return launch(faulty, x, granularity, "divide", FAULT="tail")


@green("quantize_int8", profile="divide", **TRITON)
def triton_eight_warps(x: torch.Tensor, *, granularity: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Another division of the rows."""
    return launch(codes_of_rows, x, granularity, "divide", num_warps=8)
