"""Attention over keys that all queries of a call share: what the kernel must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.orders import FINAL, Gauge, running
from contract.readings.base import Quantity, Reading

#: Which maximum a weight is rounded against, by the name of the option `gauge`.
GAUGES: dict[str, Gauge] = {
    "final": FINAL,
    "running256": running(256),
    "running512": running(512),
}
#: What torch's CPU kernel has beside its blocks of 512 keys: the relative error of its fast exponential.
FAST = {"running512": 2.0**-13}


def attention(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    start: Quantity,
    position: Quantity | None,
    prefix: Quantity | None,
    window: Quantity | None,
    block: Quantity | None,
    cap: Quantity | None,
    scale: float,
    mask: str,
    capped: str,
    weights: str,
    gauge: str,
    sums: str,
    empty: str,
) -> dict[str, Quantity]:
    """out = sum_j w_j v_j over the live keys, w = softmax(scale q.k), for every query and head.

    Query head h reads key head h / (heads / kv): neighbouring query heads share one.

    Args:
        q: (queries, heads, d) bf16, or fp32 under float32, which rounds nothing between.
        k, v: (keys, kv, d) of the same format, finite.
        start: (queries,) int32, the first key that a query may see: keys before it are padding, or another sequence.
        position: (queries,) int32, the query's own key (absent with mask=full).
        prefix: (queries,) int32, keys before it are seen by all (mask=prefix).
        window: () int32, a query sees its own key and the window - 1 before it (sliding, image_block).
        block: (keys,) int32, 0 for text, the image's number else; a query's is that of its own key (image_block).
        cap: () fp32, soft cap of the scores, before the mask (capped=yes).
        scale: multiplies the scores.
        mask: 'full'; 'causal', key <= position; 'prefix', causal or key < prefix (with prefix 0 it is the causal mask);
            'sliding', causal and position - key < window; 'image_block', position - key < window, and causal or of the
            position's own image.

    Rounding points:
        scores, scaled: q.k, and its multiple (eager).
        quotient, tanh, capped: the three steps of cap * tanh(s / cap) (eager_capped).
        p: the weights before they meet v: exp(s - max) / sum (eager), or exp(s - max) alone (flash,
            sdpa).
        out: always.
        lse: the natural log-sum-exp of the live scores, a stage; where a row without one is the mean, of as many zeros as
            there are keys.

    Options:
        weights: 'normalised', rounded after the division, or 'exponentials', divided after the product with v.
        gauge: the maximum of `exponentials`: the row's, or the running one of blocks of 256 or 512 keys. 'running512' is
            torch's kernel for the CPU: the exponential of a weight is a fast one, and -inf is added to dead scores.
        sums: whether the sum of `exponentials` takes them rounded.
        empty: a row without a live key is zeros, NaN, or the mean of all v (what a finite fill leads to).

    Freedoms: every sum in any order; exp and tanh within 2 fp32 ulps; a weight is multiplied by the reciprocal of
    the sum, or divided by it. The fast exponential (sdpa): within 2^-13 of its value, at 0 as well, where it is not 1.

    Specials: a dead key has weight exactly 0, however low the live scores are. Its score may be added to -inf, so that
    one that has overflowed to +inf or NaN may turn the row to NaN. Under sdpa a live one of +inf may make it zeros,
    too, as a fast exponential reads inf - inf as a weight of 0.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2.1; Dao et al., FlashAttention, 2022, algorithm
    1 (flash); ATen's FlashAttentionKernel.cpp, torch 2.13 (sdpa); Gemma 2 technical report, 2024, section 2 (soft cap).
    """
    live = live_keys(r, k.shape[0], start, position, prefix, window, block, mask)
    shared = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    rows = q.swapaxes(0, 1)
    keys, values = (r.take(x.swapaxes(0, 1), shared) for x in (k, v))
    scores = r.dot(rows, keys.swapaxes(1, 2), name="scores")
    scores = r.round("scaled", r.round("scores", scores) * scale)
    if capped == "yes" and cap is not None:
        ratio = r.tanh(r.round("quotient", scores / cap))
        scores = r.round("capped", r.round("tanh", ratio) * cap)
    if weights == "normalised":
        out = normalised(r, scores, values, live, empty)
        # the sum of the same exponentials; no weight is rounded for it
        _, lse = r.softmax_av(scores, values[..., :1], mask=live, empty=empty)
    else:
        fast = FAST.get(gauge, 0.0)
        out, lse = r.softmax_av(
            scores,
            values,
            mask=live,
            point="p",
            gauge=GAUGES[gauge],
            sums=sums,
            empty=empty,
            approximate=fast,
            name="fast_softmax_av" if fast else "softmax_av",
        )
        if fast:
            out, lse = (spoilt(r, scores, x, np.nan) for x in (out, lse))
            seen = r.where(known(r, live), scores, float("-inf"))
            out, lse = spoilt(r, seen, out, 0.0, -0.0), spoilt(r, seen, lse, np.inf)
    by_query = lse.reshape(*lse.shape[:2]).swapaxes(0, 1)
    return {"out": r.round("out", out.swapaxes(0, 1)), "lse": r.round("lse", by_query)}


def live_keys(
    r: Reading,
    keys: int,
    start: Quantity | None,
    position: Quantity | None,
    prefix: Quantity | None,
    window: Quantity | None,
    block: Quantity | None,
    mask: str,
) -> Any:
    """True where a query sees a key (queries, keys); without `start` no key lies before the first one."""
    key = np.arange(keys)
    live: Any = True if start is None else key >= r.integers(start)[:, None]
    if mask == "full" or position is None:
        return live
    own = r.integers(position)
    seen = key <= own[:, None]
    if mask == "prefix" and prefix is not None:
        seen |= key < r.integers(prefix)[:, None]
    if mask == "image_block" and block is not None:
        image = r.integers(block)
        seen |= (image[own][:, None] == image) & (image != 0)
    if mask in ("sliding", "image_block") and window is not None:
        seen &= own[:, None] - key < r.integers(window)
    return live & seen


def normalised(
    r: Reading,
    scores: Quantity,
    values: Quantity,
    live: Any,
    empty: str,
    steps: tuple[str, ...] = (),
) -> Quantity:
    """Weights divided by their sum, rounded at `p`, and then multiplied by v.

    `steps`: those of 'shifted', 'exp' and 'total' that are rounding points as well.
    """

    def step(name: str, x: Quantity) -> Quantity:
        return r.round(name, x) if name in steps else x

    none = ~live.any(axis=-1, keepdims=True)
    # a dead score is replaced, or -inf is added to it
    dead = r.union(r.exactly(np.full(scores.shape, -np.inf)), scores + float("-inf"))
    scores = r.where(known(r, live), scores, dead)
    # without a live key all weights are equal
    scores = r.where(known(r, none), r.exactly(np.zeros(scores.shape)), scores)
    top = r.max(scores)
    e = r.exp(step("shifted", scores - top))
    e = r.where(known(r, live | none), step("exp", e), 0.0)
    total = step("total", r.sum(e, name="softmax"))
    p = r.round("p", r.union(e / total, e * (1.0 / total)))
    out = r.dot(p, values, name="average")
    if empty == "mean":
        return out
    fill = np.full(out.shape, 0.0 if empty == "zeros" else np.nan)
    return r.where(known(r, none), r.exactly(fill), out)


def spoilt(r: Reading, scores: Quantity, row: Quantity, *others: float) -> Quantity:
    """The row, which may be one of the others where any of these scores is +inf or NaN."""
    bad = row
    for other in others:
        bad = r.union(bad, r.exactly(np.full(row.shape, other)))
    return r.where(r.less(r.max(scores), float("inf")), row, bad)


def known(r: Reading, condition: Any) -> Any:
    """A known condition, for r.where."""
    return r.less(r.exactly(np.zeros(condition.shape)), r.exactly(condition.astype(np.int64)))
