"""Ranges of means and variances that are merged from the moments of blocks, and of a mean folded into an offset."""

from __future__ import annotations

import math

import numpy as np

from contract.endpoints import MAY, ONLY, OVERFLOW, TINY, Array, Freedom, Interval, settle
from contract.sums import U, gamma, within


def merged_range(
    x: Interval, axis: int, depth: int | None, free: Freedom
) -> tuple[Interval, Interval]:
    """Mean and variance of one-value x from moments merged along any tree of at most `depth` merges a value.

    A merge of blocks of a and b values, n = a + b: delta = m_b - m_a; m = m_a + (b / n) delta; S = S_a + S_b +
    delta^2 a b / n, or with b = 1 S_a + delta (x - m) (Welford 1962; Chan, Golub and LeVeque 1983).

    Mean. With mu = max |x| and D = max x - min x the roundings of one merge move it by u (mu + 3 D) (1 + 8 u) at most,
    and the blocks' own errors are averaged: E = depth u (mu + 3 D), plus what is flushed. A row of equal values is exact.
    Variance. Every delta and x - m is within H = 2 E + 2 u D of the true one. With w = a b / n a merge misses its exact
    term by 2 w (2 |delta| H + H^2) at most (the 2 for Welford's product, where w >= 1/2). sum w delta^2 = n V, and
    sum w <= n max(1, log2(n) / 2) = n L^2, as w <= min(a, b). By Cauchy and Schwarz V moves by 4 L H sqrt(V) + 2 L^2 H^2
    at most. All terms are non-negative (a running mean never passes x), and each meets at most 2 depth + 8 roundings.

    The sum n V overflows before V does: then V may be infinite. A block merged into an empty one squares its mean: from
    2^62 on NaN is allowed. A row with a NaN or an infinity has
    an infinite or NaN mean and variance, hence nothing but NaN in (x - mean) / sqrt(variance).
    """
    n = x.shape[axis]
    d = n - 1 if depth is None else min(depth, n - 1)
    nan = np.zeros(x.shape, bool) if x.nan is None else x.nan > 0
    bad = (nan | ~np.isfinite(x.lo)).any(axis=axis, keepdims=True)
    values = np.where(bad, 0.0, x.lo)
    mu = np.abs(values).max(axis=axis, keepdims=True)
    span = values.max(axis=axis, keepdims=True) - values.min(axis=axis, keepdims=True)
    level = span == 0
    # float64's own error, of the centre and of v
    own = n * 2.0**-52 * mu
    center = values.mean(axis=axis, keepdims=True)
    c = values - center
    v = (c * c).mean(axis=axis, keepdims=True)
    error = (1 + 2.0**-20) * d * U * (mu + 3 * span) + 4 * (d + 1) * TINY + own
    h = 2 * error + 2 * U * span
    lead = math.sqrt(max(1.0, math.log2(n) / 2))
    g = gamma(2 * d + 8) + n * 2.0**-52
    move = 4 * lead * h * np.sqrt(v) + 2 * lead * lead * h * h + own * own
    low = np.maximum((v - move) * (1 - g) - 8 * TINY, 0.0)
    high = (v + move) * (1 + g) + 8 * TINY
    low, high = np.where(level, 0.0, low), np.where(level, 0.0, high)
    m_low, m_high = center - error, center + error
    first = np.take(values, [0], axis=axis)
    flush = np.where(np.abs(first) < TINY, TINY, 0.0) if free.ftz else 0.0
    m_low = np.where(level, first - flush, m_low)
    m_high = np.where(level, first + flush, m_high)
    # the sum of squares that is divided by n at the end may overflow where the variance does not
    with np.errstate(over="ignore"):
        high = np.where((mu >= 2.0**62) | (n * high >= OVERFLOW * (1 - 2.0**-20)), np.inf, high)
    wild = mu >= 2.0**125
    m_low, m_high = np.where(wild, -np.inf, m_low), np.where(wild, np.inf, m_high)
    state = np.where(bad, ONLY, np.where(mu >= 2.0**62, MAY, 0)).astype(np.uint8)
    with np.errstate(over="ignore"):
        low, high = within(low, high, free)
    return Interval(m_low, m_high), Interval(low, high, state if state.any() else None)


def folded_range(
    product: Interval, x: Interval, mean: Interval, scale: Interval, free: Freedom
) -> Interval:
    """R(x s) - R(m s), or fused, from the range of (x - m) s: both roundings move it by u (|x| + |m|) |s| at most.

    Where x s or m s alone may overflow, the difference may be any infinity or NaN, though (x - m) s is small.
    """

    def size(a: Interval) -> Array:
        return np.maximum(np.abs(a.lo), np.abs(a.hi))

    with np.errstate(invalid="ignore", over="ignore"):
        slack = (1 + 2.0**-20) * U * (size(x) + size(mean)) * size(scale) + 2 * TINY
        slack = np.where(np.isnan(slack), np.inf, slack)
        low, high = product.lo - slack, product.hi + slack
        largest = np.maximum(size(x), size(mean)) * size(scale)
    low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    over = ~(largest < OVERFLOW * (1 - 2.0**-20))
    nan = product.nan
    if over.any():
        low, high = np.where(over, -np.inf, low), np.where(over, np.inf, high)
        state = np.where(over, MAY, 0).astype(np.uint8)
        nan = state if nan is None else np.maximum(nan, state)
    return settle(low, high, nan, free, False)
