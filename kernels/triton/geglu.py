"""GeGLU: one kernel for all profiles, whose rounding points are switched at compile time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import BLOCK, WARPS, columns_grid, rounded, tile, wide
from contract.kernels.triton.row_tiles import by_rows
from contract.lazy import lazy
from contract.references.geglu import CUBIC_BF16, ROOT_TWO_OVER_PI_BF16
from contract.references.gelu import CUBIC, ROOT_TWO_OVER_PI

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")


@jit
def gelu(
    gate: tl.tensor, k: tl.tensor, c: tl.tensor, EACH: tl.constexpr, SQUARE: tl.constexpr
) -> tl.tensor:
    """gate / 2 (1 + tanh(c (gate + k gate^3))) in fp32; EACH rounds every step, SQUARE the square before the cube too."""
    cube = rounded(rounded(gate * gate, SQUARE) * gate, EACH)
    inner = rounded(gate + rounded(cube * k, EACH), EACH) if EACH else tl.math.fma(cube, k, gate)
    squashed = rounded(libdevice.tanh(rounded(inner * c, EACH)), EACH)
    return rounded(gate * 0.5, EACH) * rounded(1.0 + squashed, EACH)


@jit
def geglu_kernel(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    out_stride: tl.tensor,
    k: tl.tensor,
    c: tl.tensor,
    EACH: tl.constexpr,
    SQUARE: tl.constexpr,
    STORED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """gelu(gate) up of BLOCK columns of a row; STORED rounds the activation before the product."""
    row, column = tile(n, BLOCK)
    inside = column < n
    activated = gelu(wide(gate + row * gate_stride + column, inside), k, c, EACH, SQUARE)
    product = rounded(activated, STORED) * wide(up + row * up_stride + column, inside)
    tl.store(out + row * out_stride + column, product.to(out.dtype.element_ty), mask=inside)


@implementation(
    "geglu",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("two_step", "each_op", "each_product", "once"),
)
def geglu_triton(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """fp32 inside, rounded to bf16 where the profile says so."""
    gate, up = by_rows(gate), by_rows(up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    bf16_constants = profile == "each_op"
    geglu_kernel[columns_grid(gate)](
        gate,
        up,
        out,
        gate.shape[1],
        gate.stride(0),
        up.stride(0),
        out.stride(0),
        CUBIC_BF16 if bf16_constants else CUBIC,
        ROOT_TWO_OVER_PI_BF16 if bf16_constants else ROOT_TWO_OVER_PI,
        EACH=profile in ("each_op", "each_product"),
        SQUARE=profile == "each_product",
        STORED=profile != "once",
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return out
