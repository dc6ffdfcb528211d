"""Planted RMS norms with int8 codes in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON, half_of_lanes
from contract.engines.deferred_jit import jit
from contract.kernels.triton.rmsnorm_quant import launch, rows_kernel
from contract.kernels.triton.static_int8 import static_codes
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
    weight_at: tl.tensor,
    codes_at: tl.tensor,
    d: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    BETWEEN: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes of one row, nothing rounded between."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < d
    x = tl.load(x_at + row * x_row + column, mask, other=0.0).to(tl.float32)
    square = x * x
    if FAULT == "lanes":
        total = tl.sum(half_of_lanes(tl.reshape(square, (1, BLOCK)), 1, BLOCK), 1)
        total = tl.sum(total, 0)
    elif FAULT == "accumulator":
        total = tl.sum(square.to(tl.bfloat16), 0).to(tl.float32)
    else:
        total = tl.sum(square, 0)
    mean = tl.math.div_rn(total, d * 1.0)
    inverse = tl.math.div_rn(1.0, tl.sqrt_rn(mean + eps))
    weight = tl.load(weight_at + column, mask, other=0.0).to(tl.float32)
    y = x * inverse * (1.0 + weight)
    if FAULT == "wraps":
        # the low byte of the number: what a cast without saturation keeps
        codes = libdevice.float2int_rn(tl.math.div_rn(y, tl.broadcast_to(scale, y.shape)))
        codes = codes.to(tl.int8)
    else:
        codes = static_codes(y, tl.math.div_rn(1.0, scale))
    tl.store(codes_at + row * codes_row + column, codes, mask)


def planted(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale: float, fault: str
) -> torch.Tensor:
    """The codes with that fault."""
    return launch(faulty, x, (weight,), eps, scale, "fused", FAULT=fault)


@red("rmsnorm_quant", profile="fused", gate="exact", **TRITON)
def triton_first_shuffle_missing(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """Every second square is left out of the sum."""
    return planted(x, weight, eps, scale, "lanes")


@red("rmsnorm_quant", profile="fused", gate="stress", **TRITON)
def triton_squares_summed_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """The squares are rounded, and so is every addition."""
    return planted(x, weight, eps, scale, "accumulator")


@red("rmsnorm_quant", profile="fused", gate="exact", **TRITON)
def triton_codes_wrap(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """A number beyond 127 is cast to int8 as it is."""
    return planted(x, weight, eps, scale, "wraps")


@green("rmsnorm_quant", profile="fused", **TRITON)
def triton_eight_warps(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """Another lane tree, and a sum over warps."""
    return launch(rows_kernel, x, (weight,), eps, scale, "fused", num_warps=8)
