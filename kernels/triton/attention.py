"""Attention over shared keys: Triton kernels on tensor cores, one with a running maximum and one in three passes.

A program makes the outputs of some queries of one head, or VALUES columns of them where heads are wide: scores are then
computed once for each part, and neither keys nor values of a block need more shared memory than an SM has.
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

#: Columns of v that a program takes, and columns of q and k at a time.
VALUES, DEPTH = 128, 64
#: Keys of a step where no profile says how many share a maximum.
KEYS = 64


@jit
def products(
    q_at: tl.tensor,
    k_at: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    d: tl.tensor,
    q_query: tl.tensor,
    k_key: tl.tensor,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> tl.tensor:
    """(BLOCK_Q, BLOCK_K) products of queries and keys in fp32."""
    total = tl.zeros((BLOCK_Q, BLOCK_K), tl.float32)
    # unrolled, wide heads spill on RDNA, and on every architecture most of the code is copies of this step
    for first in range(0, D, BLOCK_D):
        column = first + tl.arange(0, BLOCK_D)
        q = tl.load(
            q_at + query[:, None] * q_query + column[None, :],
            (query < queries)[:, None] & (column < d)[None, :],
            other=0.0,
        )
        k = tl.load(
            k_at + key[None, :] * k_key + column[:, None],
            (key < keys)[None, :] & (column < d)[:, None],
            other=0.0,
        )
        total = tl.dot(q, k, total, input_precision="ieee")
    return total


@jit
def rounded(x: tl.tensor, EACH: tl.constexpr) -> tl.tensor:
    """x in bf16's precision where every step is rounded, else x."""
    return x.to(tl.bfloat16).to(tl.float32) if EACH else x


@jit
def scaled(
    products: tl.tensor, scale: tl.tensor, cap: tl.tensor, EACH: tl.constexpr, CAPPED: tl.constexpr
) -> tl.tensor:
    """Scores: products times the scale, capped by cap tanh(s / cap)."""
    s = rounded(rounded(products, EACH) * scale, EACH)
    if CAPPED:
        s = rounded(tl.math.div_rn(s, tl.broadcast_to(cap, s.shape)), EACH)
        s = rounded(rounded(libdevice.tanh(s), EACH) * cap, EACH)
    return s


@jit
def live_of(
    key: tl.tensor,
    keys: tl.tensor,
    first: tl.tensor,
    own: tl.tensor,
    ahead: tl.tensor,
    block_at: tl.tensor,
    MASK: tl.constexpr,
) -> tl.tensor:
    """True where a query sees a key: first, own and ahead as rows_of has them."""
    live = (key < keys)[None, :] & (key[None, :] >= first[:, None])
    if MASK == "prefix":
        live = live & (key[None, :] <= ahead[:, None])
    if MASK == "causal" or MASK == "sliding":
        live = live & (key[None, :] <= own[:, None])
    if MASK == "image_block":
        image = tl.load(block_at + key, key < keys, other=0)
        mine = tl.load(block_at + own)
        same = (image[None, :] == mine[:, None]) & (image != 0)[None, :]
        live = live & ((key[None, :] <= own[:, None]) | same)
    return live


@jit
def rows_of(
    query: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    start_at: tl.tensor,
    position_at: tl.tensor,
    prefix_at: tl.tensor,
    window_at: tl.tensor,
    MASK: tl.constexpr,
) -> tl.tuple:
    """First key, own key and last key ahead of each query: what lies between first and ahead is seen, but for images."""
    inside = query < queries
    first = tl.load(start_at + query, inside, other=0)
    own = tl.load(position_at + query, inside, other=0) if MASK != "full" else first * 0 + keys - 1
    ahead = own
    if MASK == "prefix":
        ahead = tl.maximum(own, tl.load(prefix_at + query, inside, other=0) - 1)
    if MASK == "sliding" or MASK == "image_block":
        first = tl.maximum(first, own - tl.load(window_at) + 1)
    return first, own, ahead


@jit
def running(
    q_at: tl.tensor,
    k_at: tl.tensor,
    v_at: tl.tensor,
    start_at: tl.tensor,
    position_at: tl.tensor,
    prefix_at: tl.tensor,
    out_at: tl.tensor,
    lse_at: tl.tensor,
    scale: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    d: tl.tensor,
    shared: tl.tensor,
    q_query: tl.tensor,
    q_head: tl.tensor,
    k_key: tl.tensor,
    k_head: tl.tensor,
    v_key: tl.tensor,
    v_head: tl.tensor,
    out_query: tl.tensor,
    out_head: tl.tensor,
    lse_query: tl.tensor,
    MASK: tl.constexpr,
    MEAN: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Blocks of BLOCK_K keys with a running maximum; weights are rounded to v's format before they meet v.

    A query without a live key gives zeros or, with MEAN, the mean of v.
    """
    query = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    head = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    q_at += head * q_head
    k_at += head // shared * k_head
    v_at += head // shared * v_head
    first, own, ahead = rows_of(
        query, queries, keys, start_at, position_at, prefix_at, start_at, MASK
    )
    none = (first > ahead) & (query < queries)
    low = tl.min(tl.where(query < queries, first, keys), 0) // BLOCK_K * BLOCK_K
    high = tl.minimum(keys, tl.max(tl.where(query < queries, ahead, 0), 0) + 1)
    if MEAN:
        empty = tl.max(none.to(tl.int32), 0)
        low, high = tl.where(empty > 0, 0, low), tl.where(empty > 0, keys, high)
    top = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    out = tl.zeros((BLOCK_Q, BLOCK_V), tl.float32)
    for at in range(low, high, BLOCK_K):
        key = (at + tl.arange(0, BLOCK_K)).to(tl.int64)
        s = products(
            q_at,
            k_at,
            query.to(tl.int64),
            key,
            queries,
            keys,
            d,
            q_query,
            k_key,
            D,
            BLOCK_Q,
            BLOCK_K,
            BLOCK_D,
        )
        s = s * scale
        live = live_of(key, keys, first, own, ahead, start_at, MASK)
        s = tl.where(live, s, float("-inf"))
        if MEAN:
            s = tl.where(none[:, None] & (key < keys)[None, :], 0.0, s)
        most = tl.maximum(top, tl.max(s, 1))
        # without a live key so far the maximum is -inf, and -inf - -inf no weight
        base = tl.where(most == float("-inf"), 0.0, most)
        weights = libdevice.exp(s - base[:, None])
        factor = libdevice.exp(top - base)
        total = total * factor + tl.sum(weights, 1)
        v = tl.load(
            v_at + key[:, None] * v_key + column[None, :],
            (key < keys)[:, None] & (column < d)[None, :],
            other=0.0,
        )
        out = tl.dot(weights.to(v.dtype), v, out * factor[:, None], input_precision="ieee")
        top = most
    some = total > 0
    out = tl.math.div_rn(out, tl.broadcast_to(tl.where(some, total, 1.0)[:, None], out.shape))
    at = out_at + query.to(tl.int64)[:, None] * out_query + head * out_head + column[None, :]
    mask = (query < queries)[:, None] & (column < d)[None, :]
    tl.store(at, out.to(out_at.dtype.element_ty), mask)
    if tl.program_id(2) == 0:
        tl.store(lse_at + query * lse_query + head, top + libdevice.log(total), query < queries)


@jit
def three_passes(
    q_at: tl.tensor,
    k_at: tl.tensor,
    v_at: tl.tensor,
    start_at: tl.tensor,
    position_at: tl.tensor,
    window_at: tl.tensor,
    block_at: tl.tensor,
    cap_at: tl.tensor,
    out_at: tl.tensor,
    scale: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    d: tl.tensor,
    shared: tl.tensor,
    q_query: tl.tensor,
    q_head: tl.tensor,
    k_key: tl.tensor,
    k_head: tl.tensor,
    v_key: tl.tensor,
    v_head: tl.tensor,
    out_query: tl.tensor,
    out_head: tl.tensor,
    MASK: tl.constexpr,
    CAPPED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """The maximum, the sum, and then weights that are divided before they are rounded; scores are bf16 in each.

    A query without a live key sees all keys with the same score.
    """
    query = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    head = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    q_at += head * q_head
    k_at += head // shared * k_head
    v_at += head // shared * v_head
    cap = tl.load(cap_at) if CAPPED else scale
    first, own, ahead = rows_of(
        query, queries, keys, start_at, position_at, start_at, window_at, MASK
    )
    low, high = 0, keys
    if MASK != "image_block":
        # a tile of queries that all see a key skips the keys that none of them sees
        empty = tl.max(((first > own) & (query < queries)).to(tl.int32), 0)
        least = tl.min(tl.where(query < queries, first, keys), 0) // BLOCK_K * BLOCK_K
        most = tl.max(tl.where(query < queries, own, 0), 0) + 1
        low, high = tl.where(empty > 0, 0, least), tl.where(empty > 0, keys, most)
    top = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    seen = tl.zeros((BLOCK_Q,), tl.int32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    out = tl.zeros((BLOCK_Q, BLOCK_V), tl.float32)
    for turn in tl.static_range(3):
        for at in range(low, high, BLOCK_K):
            key = (at + tl.arange(0, BLOCK_K)).to(tl.int64)
            s = products(
                q_at,
                k_at,
                query.to(tl.int64),
                key,
                queries,
                keys,
                d,
                q_query,
                k_key,
                D,
                BLOCK_Q,
                BLOCK_K,
                BLOCK_D,
            )
            s = scaled(s, scale, cap, True, CAPPED)
            live = live_of(key, keys, first, own, ahead, block_at, MASK)
            if turn == 0:
                top = tl.maximum(top, tl.max(tl.where(live, s, float("-inf")), 1))
                seen = tl.maximum(seen, tl.max(live.to(tl.int32), 1))
            else:
                none = (seen == 0)[:, None] & (key < keys)[None, :]
                s = tl.where(none, 0.0, tl.where(live, s, float("-inf")))
                weights = libdevice.exp(s - tl.where(seen == 0, 0.0, top)[:, None])
                weights = tl.where(live | none, weights, 0.0)
                if turn == 1:
                    total += tl.sum(weights, 1)
                else:
                    v = tl.load(
                        v_at + key[:, None] * v_key + column[None, :],
                        (key < keys)[:, None] & (column < d)[None, :],
                        other=0.0,
                    )
                    p = tl.math.div_rn(weights, tl.broadcast_to(total[:, None], weights.shape))
                    out = tl.dot(p.to(v.dtype), v, out)
    at = out_at + query.to(tl.int64)[:, None] * out_query + head * out_head + column[None, :]
    mask = (query < queries)[:, None] & (column < d)[None, :]
    tl.store(at, out.to(out_at.dtype.element_ty), mask)


@implementation("attention", name="triton", profile="flash", engine="ptx", requires=("triton",))
def attention_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor | None = None,
    prefix: torch.Tensor | None = None,
    *,
    scale: float,
    mask: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch over blocks of 256 keys."""
    return launch_running(running, q, k, v, start, position, prefix, scale, mask, BLOCK)


@implementation("attention", name="triton", profile="float32", engine="ptx", requires=("triton",))
def attention_float32(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
    mask: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch; products in fp32, not in tf32."""
    return launch_running(running, q, k, v, start, position, None, scale, mask, KEYS, MEAN=True)


@implementation(
    "attention",
    name="triton",
    profile=("eager", "eager_capped"),
    engine="ptx",
    requires=("triton",),
)
def attention_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor | None = None,
    block: torch.Tensor | None = None,
    cap: torch.Tensor | None = None,
    *,
    scale: float,
    mask: str,
) -> torch.Tensor:
    """One launch that computes the scores three times and holds none of them."""
    return launch_passes(three_passes, q, k, v, start, position, window, block, cap, scale, mask)


def launch_running(
    kernel: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor | None,
    prefix: torch.Tensor | None,
    scale: float,
    mask: str,
    block: int,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel, or another with its arguments, over all queries and heads; columns lie side by side."""
    queries, heads, d = q.shape
    keys, kv = k.shape[:2]
    out = torch.empty((queries, heads, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((queries, heads), dtype=torch.float32, device=q.device)
    grid, tiles = tiles_of(q)
    kernel[grid](
        q, k, v, start, start if position is None else position, start if prefix is None else prefix, out, lse, scale,
        queries, keys, d, heads // kv, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        out.stride(0), out.stride(1), lse.stride(0),
        MASK=mask, BLOCK_K=block, **{"MEAN": False, "num_warps": 8, **tiles, **more},
    )  # fmt: skip
    return out, lse


def launch_passes(
    kernel: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor | None,
    block: torch.Tensor | None,
    cap: torch.Tensor | None,
    scale: float,
    mask: str,
    **more: Any,
) -> torch.Tensor:
    """The kernel, or another with its arguments, over all queries and heads; columns lie side by side."""
    queries, heads, d = q.shape
    keys, kv = k.shape[:2]
    out = torch.empty((queries, heads, d), dtype=q.dtype, device=q.device)
    grid, tiles = tiles_of(q)
    kernel[grid](
        q, k, v, start, position, start if window is None else window, start if block is None else block,
        start if cap is None else cap, out, scale,
        queries, keys, d, heads // kv, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        out.stride(0), out.stride(1),
        MASK=mask, CAPPED=cap is not None, BLOCK_K=KEYS, **{**tiles, **more},
    )  # fmt: skip
    return out


def tiles_of(q: torch.Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of tiles of queries, heads and columns of v, and the sizes of a tile."""
    queries, heads, d = q.shape
    padded = max(16, 1 << (d - 1).bit_length())
    tall = 16 if queries <= 16 else 32
    # wide heads and fp32: half of the columns at a time and no pipeline, or blocks of 256 keys would not fit into the
    # 99 KiB of shared memory of some devices
    large = padded > VALUES or q.element_size() > 2
    values, depth = min(VALUES >> large, padded), min(DEPTH >> large, padded)
    sizes = {"D": padded, "BLOCK_Q": tall, "BLOCK_D": depth, "BLOCK_V": values}
    return (-(-queries // tall), heads, -(-d // values)), {**sizes, "num_stages": 1 if large else 2}
