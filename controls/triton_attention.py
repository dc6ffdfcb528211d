"""Planted attention in Triton: one fault a kernel or launch, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON, truncated
from contract.engines.deferred_jit import jit
from contract.kernels.attention import BLOCK
from contract.kernels.triton.attention import (
    KEYS,
    launch_passes,
    launch_running,
    live_of,
    products,
    rows_of,
    running,
    three_passes,
)
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")


@jit
def faulty(
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
    FAULT: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Blocks of keys with a running maximum, zeros where no key is live."""
    query = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    head = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    q_at += head * q_head
    k_at += head // shared * k_head
    v_at += head // shared * v_head
    first, own, ahead = rows_of(
        query, queries, keys, start_at, position_at, prefix_at, start_at, MASK
    )
    low = tl.min(tl.where(query < queries, first, keys), 0) // BLOCK_K * BLOCK_K
    high = tl.minimum(keys, tl.max(tl.where(query < queries, ahead, 0), 0) + 1)
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
        most = tl.maximum(top, tl.max(s, 1))
        # without a live key so far the maximum is -inf, and -inf - -inf no weight
        base = tl.where(most == float("-inf"), 0.0, most)
        weights = libdevice.exp(s - base[:, None])
        factor = libdevice.exp(top - base)
        narrow = weights.to(v_at.dtype.element_ty)
        if FAULT == "weights":
            narrow = truncated(weights)
        summed = narrow.to(tl.float32) if FAULT == "sum" else weights
        total = total * factor + tl.sum(summed, 1)
        v = tl.load(
            v_at + key[:, None] * v_key + column[None, :],
            (key < keys)[:, None] & (column < d)[None, :],
            other=0.0,
        )
        kept = out if FAULT == "rescaling" else out * factor[:, None]
        out = tl.dot(narrow, v, kept, input_precision="tf32" if FAULT == "tf32" else "ieee")
        top = most
    some = total > 0
    out = tl.math.div_rn(out, tl.broadcast_to(tl.where(some, total, 1.0)[:, None], out.shape))
    at = out_at + query.to(tl.int64)[:, None] * out_query + head * out_head + column[None, :]
    mask = (query < queries)[:, None] & (column < d)[None, :]
    tl.store(at, out.to(out_at.dtype.element_ty), mask)
    if tl.program_id(2) == 0:
        tl.store(lse_at + query * lse_query + head, top + libdevice.log(total), query < queries)


@red("attention", profile="flash", gate="exact", mask="full", **TRITON)
def triton_weights_truncated(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bits of the weights are dropped where they meet v."""
    return launch_running(faulty, q, k, v, start, None, None, scale, "full", BLOCK, FAULT="weights")


@red("attention", profile="flash", gate="exact", mask="full", **TRITON)
def triton_sum_of_rounded_weights(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum takes the rounded weights."""
    return launch_running(faulty, q, k, v, start, None, None, scale, "full", BLOCK, FAULT="sum")


@red("attention", profile="flash", gate="exact", mask="full", **TRITON)
def triton_not_rescaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What was added up before a larger maximum stays as it is."""
    return launch_running(
        faulty, q, k, v, start, None, None, scale, "full", BLOCK, FAULT="rescaling"
    )


@red("attention", profile="flash", gate="exact", mask="prefix", **TRITON)
def triton_prefix_forgotten(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The causal mask alone."""
    return launch_running(running, q, k, v, start, position, prefix, scale, "causal", BLOCK)


@red("attention", profile="float32", gate="stress", mask="causal", **TRITON)
def triton_values_in_tf32(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Triton's default for fp32 operands: 10 bits of each are multiplied."""
    return launch_running(
        faulty, q, k, v, start, position, None, scale, "causal", KEYS, FAULT="tf32"
    )


@red("attention", profile="eager", gate="exact", mask="image_block", **TRITON)
def triton_images_are_causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor,
    block: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """A query does not see the rest of its image."""
    return launch_passes(
        three_passes, q, k, v, start, position, window, block, None, scale, "sliding"
    )


@red("attention", profile="eager_capped", gate="exact", mask="sliding", capped="yes", **TRITON)
def triton_window_forgotten(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor,
    cap: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """The causal mask alone."""
    return launch_passes(three_passes, q, k, v, start, position, window, None, cap, scale, "causal")


@red("attention", profile="eager_capped", gate="shapes", mask="sliding", capped="yes", **TRITON)
def triton_cap_forgotten(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor,
    cap: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """Scores as they are."""
    return launch_passes(
        three_passes, q, k, v, start, position, window, None, None, scale, "sliding"
    )


@green("attention", profile="flash", mask="full", **TRITON)
def triton_four_warps(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Another division of the tiles."""
    return launch_running(running, q, k, v, start, None, None, scale, "full", BLOCK, num_warps=4)
