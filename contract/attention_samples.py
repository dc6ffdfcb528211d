"""One legal execution of a softmax-weighted sum, step by step: blocks, running maxima, rescaling, splits, merges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract.attention import Softmax, halves
from contract.endpoints import Array, to_f32
from contract.orders import FP32, AnyOrder
from contract.product_samples import dot_sample

if TYPE_CHECKING:
    from contract.readings.sample import SampleReading

Part = tuple[Array, Array, Array]  # running maximum (Q, 1), sum (Q, 1), weighted values (Q, D)


def softmax_av_sample(
    r: SampleReading, s: Array, v: Array, mask: Array | None, spec: Softmax
) -> tuple[Array, Array]:
    """o (..., Q, D) and the natural log-sum-exp (..., Q, 1) of scores (..., Q, K) and values (..., K, D)."""
    live = np.broadcast_to(np.asarray(True) if mask is None else mask, s.shape)
    none = ~live.any(axis=-1, keepdims=True)
    if spec.empty == "mean":
        s, live = np.where(none, 0.0, s), live | none
    # masked keys are not read: neither their scores nor their values reach a step
    s = np.where(live, s, -np.inf)
    with np.errstate(all="ignore"):
        m, total, o = _parts(r, s, v, live, spec)
        # the sum of a row may also be inverted once
        divided = r.div(o, total)
        inverted = r.mul(o, r.div(np.asarray(1.0), total))
        lse = r.add(m, r._function("log", total, spec.ulps))
    out = np.where(_coin(r, divided.shape), divided, inverted)
    if spec.empty != "mean" and none.any():
        zero = spec.empty == "zeros"
        out = np.where(none, 0.0 if zero else np.nan, out)
        lse = np.where(none, -np.inf if zero else np.nan, lse)
    return out, lse


def _coin(r: SampleReading, shape: tuple[int, ...]) -> Array:
    if r.choice.alternative == "random":
        return r.rng.random(shape) < 0.5
    return np.full(shape, r.choice.alternative == "first")


def _parts(r: SampleReading, s: Array, v: Array, live: Array, spec: Softmax) -> Part:
    """Splits of blocks, merged one after the other in any order."""
    keys = s.shape[-1]
    final = np.max(s, axis=-1, keepdims=True)
    blocks = spec.gauge.blocks(keys)
    if not spec.gauge.block:
        # every block size is legal
        step = max(16, -(-keys // max(1, spec.merges_of(keys))))
        blocks = [slice(a, min(a + step, keys)) for a in range(0, keys, step)]
        if spec.gauge.kind == "any" and keys > 1 and r.choice.order == "random":
            cut = int(r.rng.integers(1, keys))
            blocks = [slice(0, cut), slice(cut, keys)]
    inner = None if spec.depth is None else spec.depth - len(blocks) - 1
    parts: list[Part] = []
    for block in blocks:
        fresh = not parts or (spec.gauge.split and block.start % spec.gauge.split == 0)
        before = None if fresh else parts.pop()
        known = final if spec.gauge.kind == "final" else None
        parts.append(
            _block(r, s[..., block], v[..., block, :], live[..., block], before, known, inner, spec)
        )
    order = r.rng.permutation(len(parts)) if r.choice.order == "random" else range(len(parts))
    merged = [parts[i] for i in order]
    while len(merged) > 1:
        merged.append(_merge(r, merged.pop(0), merged.pop(0), spec))
    return merged[0]


def _safe(m: Array) -> Array:
    # a part without a live key: its maximum is -inf, and -inf - -inf is no weight
    return np.where(m == -np.inf, 0.0, m)


def _exp(r: SampleReading, x: Array, spec: Softmax) -> Array:
    return np.asarray(r._function("exp", x, spec.ulps))


def _weight(r: SampleReading, x: Array, spec: Softmax) -> Array:
    """The exponential of a weight, which may be an approximate one, at 0 as well."""
    e = _exp(r, x, spec)
    if not spec.approximate or r.choice.ulps == "none":
        return e
    side = {"plus": 1.0, "minus": -1.0}.get(r.choice.ulps)
    error = r.rng.uniform(-1.0, 1.0, e.shape) if side is None else np.full(e.shape, side)
    return r._flush(to_f32(e * (1 + error * spec.approximate)))


def _block(
    r: SampleReading,
    s: Array,
    v: Array,
    live: Array,
    before: Part | None,
    final: Array | None,
    depth: int | None,
    spec: Softmax,
) -> Part:
    m = np.max(s, axis=-1, keepdims=True) if final is None else final
    if before is not None:
        m = np.maximum(before[0], m)
    e = np.where(live, _weight(r, r.add(s, -_safe(m)), spec), 0.0)
    high, low = halves(e, spec)
    p = np.where(high != e, r._flush(high), e)
    # a weight of 0 is skipped by some kernels and multiplied by others; both leave finite values alone
    limit = None if depth is None else max(depth, (s.shape[-1] - 1).bit_length())
    o = _dot(r, p, v, live, limit)
    if spec.low_format is not None:
        low = r._flush(low)
        o, p = r.add(o, _dot(r, low, v, live, limit)), r.add(p, low)
    total = r._sum(p if spec.sums == "rounded" else e, -1, limit)
    if before is None:
        return m, total, o
    scale = _exp(r, r.add(before[0], -_safe(m)), spec)
    return m, r.add(r.mul(before[1], scale), total), r.add(r.mul(before[2], scale), o)


def _dot(r: SampleReading, p: Array, v: Array, live: Array, depth: int | None) -> Array:
    return dot_sample(p, _unread(v, live), AnyOrder(depth), FP32, r.choice, r.rng)


def _unread(v: Array, live: Array) -> Array:
    """v with what no query reads taken out (it may be poison)."""
    read = np.asarray(live.any(axis=-2))[..., None]
    return np.where(read, v, 0.0)


def _merge(r: SampleReading, a: Part, b: Part, spec: Softmax) -> Part:
    """Two splits; an empty one leaves the other's bits."""
    m = np.maximum(a[0], b[0])
    left, right = (_exp(r, r.add(x[0], -_safe(m)), spec) for x in (a, b))
    total = r.add(r.mul(a[1], left), r.mul(b[1], right))
    o = r.add(r.mul(a[2], left), r.mul(b[2], right))
    return m, np.asarray(total), np.asarray(o)
