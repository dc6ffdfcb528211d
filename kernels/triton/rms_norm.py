"""RMS normalisation, one pass: a row stays in registers between its sum and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.row_tiles import DEPTH, by_rows, row_tile
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def inverse_root(x: tl.tensor) -> tl.tensor:
    """1 / sqrt(x), both rounded to nearest; one number a row.

    rsqrt.approx is within 2^-22.9 (PTX ISA, rsqrt), which is more than 2 ulps just below a power of two.
    """
    return tl.math.div_rn(1.0, tl.math.sqrt_rn(x))


@jit
def inverse_rms(wide: tl.tensor, inverse_d: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """1 / sqrt(mean(x^2) + eps) of each row of a tile whose masked values are 0, (ROWS, 1)."""
    return inverse_root(tl.sum(wide * wide, 1, keep_dims=True) * inverse_d + eps)


@jit
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    GAIN: tl.constexpr,
    TWO_STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """ROWS rows in registers: mean square, inverse root, gain, store."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    normed = wide * inverse_rms(wide, inverse_d, eps)
    if TWO_STEP:
        normed = normed.to(out.dtype.element_ty).to(tl.float32)
    if GAIN != "none":
        gain = tl.load(weight + column, mask=column < d, other=0.0).to(tl.float32)
        if GAIN == "1+w":
            gain = 1.0 + gain
        normed = normed * gain
    tl.store(out + row * out_stride + column, normed.to(out.dtype.element_ty), mask=inside)


@implementation(
    "rms_norm",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("once", "two_step", "float32"),
    order={"mean": DEPTH},
)
def rms_norm_triton(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float, gain: str, profile: str
) -> torch.Tensor:
    """fp32 inside; the normalised row is rounded to x's format before the gain under two_step."""
    x = by_rows(x)
    rows, d = x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    tile = row_tile(d)
    rms_norm_kernel[(-(-rows // tile["ROWS"]),)](
        x,
        weight,
        out,
        rows,
        d,
        x.stride(0),
        out.stride(0),
        1.0 / d,
        eps,
        GAIN=gain,
        TWO_STEP=profile == "two_step",
        **tile,
    )
    return out
