"""Planted fp8 quantisers in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.gemm_f143 import exponent_of
from contract.kernels.triton.quant_f143_sat import codes_of_rows, launch
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
    clipped_at: tl.tensor,
    d: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    factor: tl.tensor,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes of one row, and how many were clipped."""
    row = tl.program_id(0).to(tl.int64)
    clipped = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, d, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_at + row * x_row + column, column < d, other=0.0)
        y = x.to(tl.float32) * factor
        size = tl.minimum(tl.abs(y), 240.0)
        bits = size.to(tl.int32, bitcast=True)
        if FAULT == "away":
            bits += 0x80000
        elif FAULT == "cut":
            bits += 0
        else:
            bits += 0x7FFFF + ((bits >> 20) & 1)
        low = libdevice.float2int_rn(size * 1024.0)
        low = tl.where(low < 8, 0, low) if FAULT == "flush" else low
        code = tl.where(size < 0.0078125, low, (bits >> 20) - (119 << 3))
        code = tl.where((y < 0) & (code > 0), code | 0x80, code)
        # false for a NaN alone
        code = code if FAULT == "nan" else tl.where(y == y, code, 0x80)  # noqa: PLR0124
        tl.store(codes_at + row * codes_row + column, code.to(tl.uint8), column < d)
        clipped += (tl.abs(y) >= 248.0).to(tl.int32)
    tl.store(clipped_at + row, tl.sum(clipped, 0))


@red("quant_f143_sat", profile="saturate", gate="exact", **TRITON)
def triton_bits_cut(x: torch.Tensor, *, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The bits below a code's last one are dropped."""
    return launch(faulty, x, exponent_of(k), FAULT="cut")


@red("quant_f143_sat", profile="saturate", gate="exact", **TRITON)
def triton_ties_away(x: torch.Tensor, *, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Half a step is added and the rest cut."""
    return launch(faulty, x, exponent_of(k), FAULT="away")


@red("quant_f143_sat", profile="saturate", gate="exact", **TRITON)
def triton_subnormal_codes_flushed(
    x: torch.Tensor, *, k: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rounds below 2^-7 is zero."""
    return launch(faulty, x, exponent_of(k), FAULT="flush")


@red("quant_f143_sat", profile="saturate", gate="exact", **TRITON)
def triton_nan_saturates(x: torch.Tensor, *, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    """min.f32 drops a NaN, which becomes 240."""
    return launch(faulty, x, exponent_of(k), FAULT="nan")


@green("quant_f143_sat", profile="saturate", **TRITON)
def triton_eight_warps(x: torch.Tensor, *, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Another division of the rows."""
    return launch(codes_of_rows, x, exponent_of(k), num_warps=8)
