"""Planted layer norms with int8 codes in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.layernorm_quant import rows_kernel
from contract.kernels.triton.rmsnorm_quant import launch
from contract.kernels.triton.static_int8 import static_codes
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty(
    x_at: tl.tensor,
    weight_at: tl.tensor,
    bias_at: tl.tensor,
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
    count = d * 1.0
    mean = tl.math.div_rn(tl.sum(x, 0), count)
    centred = x - mean
    if FAULT == "one_pass":
        variance = tl.math.div_rn(tl.sum(x * x, 0), count) - mean * mean
    else:
        # columns beyond the row add the mean's square
        variance = tl.math.div_rn(tl.sum(centred * centred, 0), count)
    inverse = tl.math.div_rn(1.0, tl.sqrt_rn(variance + eps))
    weight = tl.load(weight_at + column, mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_at + column, mask, other=0.0).to(tl.float32)
    y = centred * inverse * weight + bias
    codes = static_codes(y, tl.math.div_rn(1.0, scale))
    tl.store(codes_at + row * codes_row + column, codes, mask)


@red("layernorm_quant", profile="fused", gate="stress", **TRITON)
def triton_variance_in_one_pass(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """mean(x^2) - m^2 cancels."""
    return launch(faulty, x, (weight, bias), eps, scale, "fused", FAULT="one_pass")


@red("layernorm_quant", profile="fused", gate="shapes", **TRITON)
def triton_tail_not_masked(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """Columns beyond the row are -m in the variance."""
    return launch(faulty, x, (weight, bias), eps, scale, "fused", FAULT="tail")


@green("layernorm_quant", profile="fused", **TRITON)
def triton_eight_warps(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """Another lane tree, and sums over warps."""
    return launch(rows_kernel, x, (weight, bias), eps, scale, "fused", num_warps=8)
