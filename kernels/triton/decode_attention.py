"""Attention of one query a sequence over its own cache: Triton kernels for chunks of slots, merged in order.

Three launches: the scores and the maximum of every chunk; weights against the maximum of a chunk and those before it,
their sum and their product with v; and the merge. The first two run over all chunks at once. The query heads of a key head
are one matrix, so that its keys and values are read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.attention import BLOCK
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")

#: Columns of q and k at a time, columns of v that a program takes, and rows of v at a time.
DEPTH, VALUES, SLOTS = 64, 128, 64


@jit
def scores_kernel(
    q_at: tl.tensor,
    k_at: tl.tensor,
    length_at: tl.tensor,
    scores_at: tl.tensor,
    tops_at: tl.tensor,
    scale: tl.tensor,
    slots: tl.tensor,
    d: tl.tensor,
    group: tl.tensor,
    chunks: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_slot: tl.tensor,
    k_head: tl.tensor,
    D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Scores of one chunk and key head, -inf beyond the used slots, and their maximum for each query head."""
    chunk, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    member = tl.arange(0, BLOCK_G)
    slot = (chunk * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)
    used = slot < tl.load(length_at + row)
    total = tl.zeros((BLOCK_G, BLOCK_K), tl.float32)
    for first in range(0, D, BLOCK_D):
        column = first + tl.arange(0, BLOCK_D)
        q = tl.load(
            q_at + row * q_row + (head * group + member)[:, None] * q_head + column[None, :],
            (member < group)[:, None] & (column < d)[None, :],
            other=0.0,
        )
        k = tl.load(
            k_at + row * k_row + head * k_head + slot[None, :] * k_slot + column[:, None],
            used[None, :] & (column < d)[:, None],
            other=0.0,
        )
        total = tl.dot(q, k, total, input_precision="ieee")
    s = tl.where(used[None, :], total * scale, float("-inf"))
    line = (row * tl.num_programs(1) + head) * group + member
    inside = member < group
    mask = inside[:, None] & (slot < slots)[None, :]
    tl.store(scores_at + line[:, None] * slots + slot[None, :], s, mask)
    tl.store(tops_at + line * chunks + chunk, tl.max(s, 1), inside)


@jit
def values_kernel(
    scores_at: tl.tensor,
    tops_at: tl.tensor,
    v_at: tl.tensor,
    length_at: tl.tensor,
    parts_at: tl.tensor,
    sums_at: tl.tensor,
    slots: tl.tensor,
    d: tl.tensor,
    group: tl.tensor,
    chunks: tl.tensor,
    v_row: tl.tensor,
    v_slot: tl.tensor,
    v_head: tl.tensor,
    CHUNKS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Weights of one chunk and key head, rounded to v's format, times v; their unrounded sum. BLOCK_S slots at a time."""
    parts = tl.cdiv(d, BLOCK_V)
    chunk, head, row = tl.program_id(0) // parts, tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) % parts * BLOCK_V + tl.arange(0, BLOCK_V)
    member = tl.arange(0, BLOCK_G)
    inside = member < group
    line = (row * tl.num_programs(1) + head) * group + member
    before = tl.arange(0, CHUNKS)
    tops = tl.load(
        tops_at + line[:, None] * chunks + before[None, :],
        inside[:, None] & (before <= chunk)[None, :],
        other=float("-inf"),
    )
    top = tl.max(tops, 1)
    # without a score so far the maximum is -inf, and -inf - -inf no weight
    base = tl.where(top == float("-inf"), 0.0, top)
    length = tl.load(length_at + row)
    total = tl.zeros((BLOCK_G,), tl.float32)
    out = tl.zeros((BLOCK_G, BLOCK_V), tl.float32)
    for first in range(0, BLOCK_K, BLOCK_S):
        slot = (chunk * BLOCK_K + first + tl.arange(0, BLOCK_S)).to(tl.int64)
        mask = inside[:, None] & (slot < slots)[None, :]
        s = tl.load(scores_at + line[:, None] * slots + slot[None, :], mask, other=float("-inf"))
        weights = libdevice.exp(s - base[:, None])
        total += tl.sum(weights, 1)
        # what an unused slot holds may be NaN
        v = tl.load(
            v_at + row * v_row + head * v_head + slot[:, None] * v_slot + column[None, :],
            (slot < length)[:, None] & (column < d)[None, :],
            other=0.0,
        )
        out = tl.dot(weights.to(v.dtype), v, out, input_precision="ieee")
    at = parts_at + (line * chunks + chunk)[:, None] * d + column[None, :]
    tl.store(at, out, inside[:, None] & (column < d)[None, :])
    if tl.program_id(0) % parts == 0:
        tl.store(sums_at + line * chunks + chunk, total, inside)


@jit
def merge_kernel(
    tops_at: tl.tensor,
    parts_at: tl.tensor,
    sums_at: tl.tensor,
    length_at: tl.tensor,
    out_at: tl.tensor,
    lse_at: tl.tensor,
    heads: tl.tensor,
    d: tl.tensor,
    chunks: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    BLOCK_V: tl.constexpr,
) -> None:
    """Chunks in order, each rescaled to the last maximum; a cache without a used slot gives zeros."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = row * heads + head
    column = tl.arange(0, BLOCK_V)
    last = tl.load(tops_at + line * chunks)
    for chunk in range(1, chunks):
        last = tl.maximum(last, tl.load(tops_at + line * chunks + chunk))
    base = tl.where(last == float("-inf"), 0.0, last)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    out = tl.zeros((BLOCK_V,), tl.float32)
    for chunk in range(chunks):
        top = tl.maximum(top, tl.load(tops_at + line * chunks + chunk))
        # a chunk whose maximum was -inf was weighed against 0, and holds zeros
        factor = libdevice.exp(tl.where(top == float("-inf"), base, top) - base)
        total = total + tl.load(sums_at + line * chunks + chunk) * factor
        part = tl.load(parts_at + (line * chunks + chunk) * d + column, column < d, other=0.0)
        out = out + part * factor
    some = tl.load(length_at + row) > 0
    out = tl.where(some, tl.math.div_rn(out, tl.broadcast_to(total, out.shape)), 0.0)
    at = out_at + row * out_row + head * out_head + column
    tl.store(at, out.to(out_at.dtype.element_ty), column < d)
    tl.store(lse_at + line, last + libdevice.log(total))


@implementation(
    "decode_attention",
    name="triton",
    profile=("running", "float32"),
    engine="ptx",
    requires=("triton",),
)
def decode_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Three launches, chunks of 256 slots."""
    return launch((scores_kernel, values_kernel, merge_kernel), q, k, v, length, scale, BLOCK)


def launch(
    kernels: tuple[Any, Any, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    length: torch.Tensor,
    scale: float,
    block: int,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernels, or others with their arguments, over all sequences; columns lie side by side."""
    rows, heads, d = q.shape
    slots, kv = k.shape[1], k.shape[2]
    group, chunks = heads // kv, -(-slots // block)
    padded = max(16, 1 << (d - 1).bit_length())
    wide, tall = min(VALUES, padded), max(16, 1 << (group - 1).bit_length())

    def scratch(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    scores, parts = scratch(rows, heads, slots), scratch(rows, heads, chunks, d)
    tops, sums, lse = scratch(rows, heads, chunks), scratch(rows, heads, chunks), scratch(rows, heads)  # fmt: skip
    out = torch.empty((rows, heads, d), dtype=q.dtype, device=q.device)
    tile = {"BLOCK_G": tall, "BLOCK_K": block, "num_warps": 8, "num_stages": 2, **more}
    kernels[0][(chunks, kv, rows)](
        q, k, length, scores, tops, scale,
        slots, d, group, chunks, q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2),
        D=padded, BLOCK_D=min(DEPTH, padded), **tile,
    )  # fmt: skip
    kernels[1][(chunks * -(-d // wide), kv, rows)](
        scores, tops, v, length, parts, sums,
        slots, d, group, chunks, v.stride(0), v.stride(1), v.stride(2),
        CHUNKS=1 << (chunks - 1).bit_length(), BLOCK_S=min(SLOTS, block), BLOCK_V=wide, **tile,
    )  # fmt: skip
    kernels[2][(rows, heads)](
        tops, parts, sums, length, out, lse, heads, d, chunks, out.stride(0), out.stride(1), BLOCK_V=padded
    )  # fmt: skip
    return out, lse
