"""SwiGLU: quotients rounded to nearest, and an exp that holds its 2 ulps on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import BLOCK, WARPS, columns_grid, rounded, tile, wide
from contract.kernels.triton.exact_functions import exp_by_fma
from contract.kernels.triton.row_tiles import by_rows
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def silu(gate: tl.tensor, FOLDED: tl.constexpr) -> tl.tensor:
    """x / (1 + exp(-x)); FOLDED: x times a sigmoid that is formed at |x|, exp and sigmoid rounded to bf16.

    The quotient is rounded to nearest: a fast divide flushes to zero from a divisor of 2^126 on.
    """
    if FOLDED:
        grown = rounded(exp_by_fma(tl.abs(gate)), FOLDED)
        small = tl.math.div_rn(1.0, 1.0 + grown)
        return gate * rounded(tl.where(gate < 0, small, 1.0 - small), FOLDED)
    else:
        return tl.math.div_rn(gate, 1.0 + exp_by_fma(-gate))


@jit
def swiglu_kernel(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    out_stride: tl.tensor,
    FOLDED: tl.constexpr,
    STORED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """silu(gate) up of BLOCK columns of a row; STORED rounds the activation before the product."""
    row, column = tile(n, BLOCK)
    inside = column < n
    value = wide(gate + row * gate_stride + column, inside)
    activated = rounded(silu(value, FOLDED), STORED)
    product = activated * wide(up + row * up_stride + column, inside)
    tl.store(out + row * out_stride + column, product.to(out.dtype.element_ty), mask=inside)


@implementation(
    "swiglu",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("two_step", "each_op", "once", "float32"),
)
def swiglu_triton(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """fp32 inside, rounded to bf16 where the profile says so."""
    gate, up = by_rows(gate), by_rows(up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    swiglu_kernel[columns_grid(gate)](
        gate,
        up,
        out,
        gate.shape[1],
        gate.stride(0),
        up.stride(0),
        out.stride(0),
        FOLDED=profile == "each_op",
        STORED=profile in ("two_step", "each_op"),
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return out
