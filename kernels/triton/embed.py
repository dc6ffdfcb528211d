"""Embedding rows: one program moves BLOCK columns of one row; row starts are 64 bits, as tables pass 2^31 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import BLOCK, WARPS, tile
from contract.kernels.triton.row_tiles import by_rows
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def embed_kernel(
    ids: tl.tensor,
    table: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    table_stride: tl.tensor,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """table[ids[row]], as its bits are; SCALED: times the scale, rounded to the table's format first."""
    row, column = tile(d, BLOCK)
    inside = column < d
    at = tl.load(ids + row).to(tl.int64) * table_stride
    value = tl.load(table + at + column, mask=inside, other=0.0)
    narrow = out.dtype.element_ty
    if SCALED:
        factor = tl.load(scale).to(narrow).to(tl.float32)
        value = (value.to(tl.float32) * factor).to(narrow)
    tl.store(out + row * d + column, value, mask=inside)


@implementation("embed", name="triton", engine="ptx", requires=("triton",), profile="once")
def embed_triton(
    ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """A lookup, and one product where the model scales its embeddings."""
    table = by_rows(table)
    rows, d = ids.shape[0], table.shape[1]
    out = torch.empty((rows, d), dtype=table.dtype, device=table.device)
    embed_kernel[(rows * -(-d // BLOCK),)](
        ids,
        table,
        scale,
        out,
        d,
        table.stride(0),
        SCALED=scale is not None,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return out
