"""Layer normalisation: a row stays in registers, so that its two passes read it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import rounded, wide
from contract.kernels.triton.rms_norm import inverse_rms
from contract.kernels.triton.row_tiles import DEPTH, by_rows, row_tile
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def layer_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    EACH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """ROWS rows: mean, mean of the squared deviations, gain and bias; EACH rounds after every step."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    value = wide(x + row * x_stride + column, inside)
    mean = tl.sum(value, 1, keep_dims=True) * inverse_d
    # masked columns would add the square of the mean
    centred = tl.where(inside, value - mean, 0.0)
    normed = rounded(centred * inverse_rms(centred, inverse_d, eps), EACH)
    gain = wide(weight + column, column < d)
    offset = wide(bias + column, column < d)
    result = rounded(normed * gain, EACH) + offset if EACH else tl.math.fma(normed, gain, offset)
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), mask=inside)


@implementation(
    "layer_norm",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("once", "each_op", "float32"),
    order={"mean": DEPTH, "variance": DEPTH},
)
def layer_norm_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, profile: str
) -> torch.Tensor:
    """Two passes over registers in fp32."""
    x = by_rows(x)
    rows, d = x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    tile = row_tile(d)
    layer_norm_kernel[(-(-rows // tile["ROWS"]),)](
        x,
        weight,
        bias,
        out,
        rows,
        d,
        x.stride(0),
        out.stride(0),
        1.0 / d,
        eps,
        EACH=profile == "each_op",
        **tile,
    )
    return out
