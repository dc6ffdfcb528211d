"""Soft cap: a division rounded to nearest, tanh, a product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import BLOCK, WARPS, columns_grid, rounded, tile, wide
from contract.kernels.triton.exact_functions import tanh_by_fma
from contract.kernels.triton.row_tiles import by_rows
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")


@jit
def softcap_kernel(
    x: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    cap: tl.tensor,
    EACH_OP: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """cap tanh(x / cap) of BLOCK columns of a row; EXACT where fp32 outputs show an ulp of tanh."""
    row, column = tile(n, BLOCK)
    inside = column < n
    value = wide(x + row * x_stride + column, inside)
    quotient = rounded(tl.math.div_rn(value, cap), EACH_OP)
    squashed = tanh_by_fma(quotient) if EXACT else libdevice.tanh(quotient)
    capped = rounded(squashed, EACH_OP) * cap
    tl.store(out + row * out_stride + column, capped.to(out.dtype.element_ty), mask=inside)


@implementation(
    "softcap",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("each_op", "once", "float32"),
)
def softcap_triton(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """fp32 inside; quotient and tanh rounded to bf16 under each_op."""
    x = by_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    softcap_kernel[columns_grid(x)](
        x,
        out,
        x.shape[1],
        x.stride(0),
        out.stride(0),
        cap,
        EACH_OP=profile == "each_op",
        EXACT=profile == "float32",
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return out
