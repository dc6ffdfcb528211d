"""Symmetric int8 codes with one scale for a tensor or for each channel: Triton kernels, one program a row."""

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

#: Columns that a program takes at a time.
BLOCK = 1024


@jit
def largest_of(x_at: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The largest magnitude of `count` neighbouring values."""
    most = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, count, BLOCK):
        column = first + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.abs(tl.load(x_at + column, column < count, other=0.0)))
    return tl.max(most, 0)


@jit
def largest(
    x_at: tl.tensor, largest_at: tl.tensor, d: tl.tensor, x_row: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """The largest magnitude of each row."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(largest_at + row, largest_of(x_at + row * x_row, d, BLOCK))


@jit
def codes_of_rows(
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
    BLOCK: tl.constexpr,
) -> None:
    """Codes of one row; every program finds the tensor's largest magnitude among its rows' for itself."""
    row = tl.program_id(0).to(tl.int64)
    if TENSOR:
        most = largest_of(largest_at, rows, BLOCK)
    else:
        most = largest_of(x_at + row * x_row, d, BLOCK)
    scale = tl.math.div_rn(most, 127.0) if DIVIDE else most * (1.0 / 127.0)
    scale = tl.where(most > 0, scale, 1.0)
    if TENSOR:
        tl.store(scale_at, scale, row == 0)
    else:
        tl.store(scale_at + row, scale)
    inverse = tl.math.div_rn(1.0, scale)
    for first in range(0, d, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_at + row * x_row + column, column < d, other=0.0)
        if DIVIDE:
            quotient = tl.math.div_rn(x, tl.broadcast_to(scale, x.shape))
        else:
            # a scale below 2^-128 has the reciprocal infinity, times which a zero is no number
            quotient = tl.where(x == 0, 0.0, x * inverse)
        code = tl.minimum(tl.maximum(libdevice.rint(quotient), -127.0), 127.0)
        tl.store(codes_at + row * codes_row + column, code.to(tl.int8), column < d)


@implementation(
    "quantize_int8",
    name="triton",
    profile=("divide", "reciprocal"),
    engine="ptx",
    requires=("triton",),
)
def quantize_int8(
    x: torch.Tensor, *, granularity: str, profile: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch, or two where rows share a scale."""
    return launch(codes_of_rows, x, granularity, profile)


def launch(
    kernel: Any, x: torch.Tensor, granularity: str, profile: str, **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel, or another with its arguments, over all rows; columns lie side by side."""
    rows, d = x.shape
    tensor = granularity == "tensor"
    codes = torch.empty((rows, d), dtype=torch.int8, device=x.device)
    scale = torch.empty(() if tensor else (rows,), dtype=torch.float32, device=x.device)
    most = torch.empty(rows, dtype=torch.float32, device=x.device)
    if tensor:
        largest[(rows,)](x, most, d, x.stride(0), BLOCK=BLOCK)
    kernel[(rows,)](
        x, most, codes, scale, rows, d, x.stride(0), codes.stride(0),
        TENSOR=tensor, DIVIDE=profile == "divide", BLOCK=BLOCK, **more,
    )  # fmt: skip
    return codes, scale
