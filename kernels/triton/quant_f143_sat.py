"""Saturating fp8 (e4m3fnuz) codes with a power-of-two scale, and how many of a row were clipped: a Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.gemm_f143 import exponent_of
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
def code_of(y: tl.tensor) -> tl.tensor:
    """fp32 numbers -> codes in int32: to nearest, ties to even, at most 240; a NaN is 0x80 and no zero has a sign.

    A normal number keeps its exponent and three bits of its significand: 2^20 is one step of fp32's bits, and 119 the
    difference of the biases (127 and 8). Below 2^-7 codes are multiples of 2^-10, and 8 of them are the least normal one.
    """
    size = tl.minimum(tl.abs(y), 240.0)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (119 << 3)
    code = tl.where(size < 0.0078125, libdevice.rint(size * 1024.0).to(tl.int32), normal)
    code = tl.where((y < 0) & (code > 0), code | 0x80, code)
    # false for a NaN alone
    return tl.where(y == y, code, 0x80)  # noqa: PLR0124


@jit
def codes_of_rows(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    clipped_at: tl.tensor,
    d: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    factor: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Codes of one row, and the count of those at 248 or beyond; `factor` is 2^-k."""
    row = tl.program_id(0).to(tl.int64)
    clipped = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, d, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_at + row * x_row + column, column < d, other=0.0)
        y = x.to(tl.float32) * factor
        tl.store(codes_at + row * codes_row + column, code_of(y).to(tl.uint8), column < d)
        clipped += (tl.abs(y) >= 248.0).to(tl.int32)
    tl.store(clipped_at + row, tl.sum(clipped, 0))


@implementation(
    "quant_f143_sat", name="triton", profile="saturate", engine="ptx", requires=("triton",)
)
def quant_f143_sat(x: torch.Tensor, *, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch.

    Raises:
        ValueError: a k that is no whole number in -32 .. 31.
    """
    return launch(codes_of_rows, x, exponent_of(k))


def launch(kernel: Any, x: torch.Tensor, k: int, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel, or another with its arguments, over all rows; columns lie side by side."""
    rows, d = x.shape
    codes = torch.empty((rows, d), dtype=torch.uint8, device=x.device)
    clipped = torch.empty(rows, dtype=torch.int32, device=x.device)
    kernel[(rows,)](
        x, codes, clipped, d, x.stride(0), codes.stride(0), 2.0**-k, BLOCK=BLOCK, **more
    )
    return codes.view(torch.float8_e4m3fnuz), clipped
