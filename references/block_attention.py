"""Attention of a drafted block over its context and itself: what the kernel must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.orders import running
from contract.readings.base import Quantity, Reading
from contract.references.attention import known, normalised


def block_attention(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    own_k: Quantity,
    own_v: Quantity,
    length: Quantity,
    window: Quantity | None,
    scale: float,
    mask: str,
    weights: str,
) -> Quantity:
    """out = sum_j w_j v_j over the live keys of [context | block], w = softmax(scale q.k), for every query of the block.

    The block's rows stand at positions length, length + 1, ..., behind the used slots of the context. Query head h reads
    key head h / (heads / kv).

    Args:
        q: (rows, block, heads, d) bf16, one block a sequence.
        k, v: (rows, slots, kv, d) bf16, the context. What its unused slots hold never matters, NaN included.
        own_k, own_v: (rows, block, kv, d) bf16, the block's own, finite.
        length: (rows,) int32, used slots: the first ones.
        window: () int32, a query sees its own key and the window - 1 before it (sliding).
        scale: multiplies the scores.
        mask: 'full', the whole context and the whole block, also what lies ahead; 'sliding', causal in the block, and
            the window counted over both.

    Rounding points:
        scores, scaled: q.k, and its multiple (eager).
        p: the weights before they meet v: exp(s - max) / sum (eager), or exp(s - max) alone (running), against the
            running maximum of chunks of 256 keys of [all slots | block].
        out: always.

    Options:
        weights: 'normalised', rounded after the division, or 'exponentials', divided after the product with v.

    Freedoms: every sum in any order; exp within 2 fp32 ulps; chunks are rescaled as many times as there are chunks.

    Specials: a query sees its own key, so that no row is empty; NaN in a used slot makes its sequence's head NaN.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2.1; Dao et al., FlashAttention, 2022, algorithm 1
    (running); z-lab's DFlash drafters, whose queries are the block's and whose keys are context and block.
    """
    used = np.arange(k.shape[1]) < r.integers(length)[:, None]
    context = (r.where(known(r, used[:, :, None, None]), x, 0.0) for x in (k, v))
    shared = np.arange(q.shape[2]) // (q.shape[2] // k.shape[2])
    keys, values = (
        r.take(r.concat([x, own], 1).swapaxes(1, 2), shared, axis=1)
        for x, own in zip(context, (own_k, own_v), strict=True)
    )
    live = seen_keys(r, used, q.shape[1], length, window, mask)[:, None]
    scores = r.round("scores", r.dot(q.swapaxes(1, 2), keys.swapaxes(2, 3), name="scores"))
    scores = r.round("scaled", scores * scale)
    if weights == "normalised":
        out = normalised(r, scores, values, live, "mean")
    else:
        out, _ = r.softmax_av(scores, values, mask=live, point="p", gauge=running(256))
    return r.round("out", out.swapaxes(1, 2))


def seen_keys(
    r: Reading, used: Any, block: int, length: Quantity, window: Quantity | None, mask: str
) -> Any:
    """True where a query sees a key of [context | block] (rows, block, slots + block)."""
    query = r.integers(length)[:, None] + np.arange(block)
    slots = np.broadcast_to(np.arange(used.shape[1]), used.shape)
    at = np.concatenate([slots, query], 1)[:, None]
    live = np.concatenate([used, np.ones(query.shape, bool)], 1)[:, None]
    ahead = at - query[:, :, None]
    if mask == "sliding" and window is not None:
        return live & (ahead <= 0) & (ahead > -r.integers(window))
    return np.broadcast_to(live, ahead.shape)
