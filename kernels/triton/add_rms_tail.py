"""The tail of a residual block, one pass: branch norm, sum, scalar and next norm of a row that stays in registers."""

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
def add_rms_tail_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    branch_weight: tl.tensor,
    scalar: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    BRANCH_NORM: tl.constexpr,
    SCALE: tl.constexpr,
    BRANCH: tl.constexpr,
    SUM: tl.constexpr,
    NORMED: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """ROWS rows. BRANCH, SUM and NORMED round at the points of those names; STORED: the norm reads the rounded total."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < d)
    branch = wide(x + row * x_stride + column, inside)
    stream = wide(residual + row * residual_stride + column, inside)
    if BRANCH_NORM:
        gain = wide(branch_weight + column, column < d)
        branch = rounded(branch * inverse_rms(branch, inverse_d, eps) * gain, BRANCH)
    stream = branch + stream
    if SCALE:
        stream = rounded(stream, SUM) * tl.load(scalar).to(tl.float32)
    stored = stream.to(total.dtype.element_ty)
    tl.store(total + row * d + column, stored, mask=inside)
    if STORED:
        stream = stored.to(tl.float32)
    normed = rounded(stream * inverse_rms(stream, inverse_d, eps), NORMED)
    normed = normed * wide(weight + column, column < d)
    tl.store(out + row * d + column, normed.to(out.dtype.element_ty), mask=inside)


@implementation(
    "add_rms_tail",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("each", "each_norm", "fused", "two_step"),
    order={"branch_mean": DEPTH, "mean": DEPTH},
)
def add_rms_tail_triton(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    branch_weight: torch.Tensor | None = None,
    scalar: torch.Tensor | None = None,
    *,
    eps: float,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The total as it is stored, and its norm; fp32 between the rounding points."""
    x, residual = by_rows(x), by_rows(residual)
    rows, d = x.shape
    total, out = torch.empty((2, rows, d), dtype=x.dtype, device=x.device)
    tile = row_tile(d)
    add_rms_tail_kernel[(-(-rows // tile["ROWS"]),)](
        x,
        residual,
        weight,
        branch_weight,
        scalar,
        total,
        out,
        rows,
        d,
        x.stride(0),
        residual.stride(0),
        1.0 / d,
        eps,
        BRANCH_NORM=branch_weight is not None,
        SCALE=scalar is not None,
        BRANCH=profile in ("each", "each_norm"),
        SUM=profile == "each",
        NORMED=profile == "two_step",
        STORED=profile in ("each", "two_step"),
        **tile,
    )
    return total, out
