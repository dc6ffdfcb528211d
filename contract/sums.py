"""Ranges of sums, means and variances over any legal order of at most a given depth.

u = 2^-24 is half an fp32 ulp of 1, g(h) = h u / (1 - h u), A the sum of the terms' magnitudes (upper ends), t = 2^-149
(2^-126 where results may be flushed). A sum of n terms in a tree through which no term makes more than d additions is
within g(d) A of the exact sum (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); float64 evaluation
adds n 2^-52 A. The bound is a worst case, not a statistical one: a row of equal values exceeds 6 sqrt(n) u A.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from contract.interval import (
    BIG,
    MAY,
    ONLY,
    TINY,
    Array,
    Freedom,
    Interval,
    collapse,
    flushed,
    to_f32,
)

U = float.fromhex("0x1p-24")
# fp32 rounds to infinity from here: 2^128 (1 - 2^-25)
OVERFLOW = float.fromhex("0x1.ffffffp127")


def gamma(h: float, u: float = U) -> float:
    """g(h) = h u / (1 - h u), the relative error of h chained roundings."""
    return h * u / (1.0 - h * u)


def exact_rows(
    x: Interval, magnitude: Array, axis: int, free: Freedom, *, start: float = 0.0, bits: int = 24
) -> Array:
    """Where every order gives the exact sum: all terms one-value multiples of q with sum |terms| <= 2^bits q.

    The smallest admissible q is 2^ceil(log2(A 2^-bits)), at least t; a row of multiples of a larger power of two is a
    row of multiples of this one too.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        total = magnitude + start
        exponent = np.ceil(np.log2(np.where(total > 0, total, 1.0))) - bits
        floor = -126 if free.ftz else -149
        exponent = np.maximum(exponent, floor).astype(np.int32)
        unit = np.ldexp(1.0, -exponent)
        ok = np.isfinite(total) & (total * unit <= 2.0**bits)
        lo = x.lo
        # a few columns first: most rows fail here
        head = np.take(lo, range(min(8, lo.shape[axis])), axis=axis) * unit
        ok = ok & (np.rint(head) == head).all(axis=axis, keepdims=True)
        if not ok.any():
            return ok
        scaled = lo * unit
        ok = ok & (np.rint(scaled) == scaled).all(axis=axis, keepdims=True)
        if not x.same:
            ok = ok & (x.lo == x.hi).all(axis=axis, keepdims=True)
    return np.asarray(ok)


def sum_range(x: Interval, axis: int, depth: int | None, free: Freedom) -> Interval:
    """The sum along one axis (kept with size 1), any order of at most `depth` additions a term (n - 1 where None)."""
    x = flushed(x, free)
    n = x.shape[axis]
    if n == 1:
        return Interval(x.lo, x.hi, x.nan, narrow=x.narrow)
    d = n - 1 if depth is None else min(depth, n - 1)
    with np.errstate(invalid="ignore", over="ignore"):
        lo = x.lo.sum(axis=axis, keepdims=True)
        hi = lo if x.same else x.hi.sum(axis=axis, keepdims=True)
        positive = bool(x.lo.min() >= 0) if x.lo.size else True
        if positive:
            magnitude = hi
        else:
            magnitude = (np.abs(x.lo) if x.same else np.maximum(np.abs(x.lo), np.abs(x.hi))).sum(
                axis=axis, keepdims=True
            )
        slack = (gamma(d) + n * 2.0**-52) * magnitude + n * (TINY if free.ftz else 2.0**-149)
        exact = exact_rows(x, magnitude, axis, free)
        low = np.where(exact, lo, lo - slack)
        high = np.where(exact, hi, hi + slack)
    if positive:
        low = np.maximum(low, 0.0)
    zero = (low <= 0) & (high >= 0)
    if zero.any() and not positive:
        low, high = np.where(zero & (low == 0), -0.0, low), np.where(zero & (high == 0), 0.0, high)
    nan = None if x.nan is None else x.nan.max(axis=axis, keepdims=True)
    if not magnitude.size or not (float(magnitude.max()) < BIG):
        low, high, nan = _overflow(x, axis, low, high, nan, gamma(d))
    narrow = bool(exact.all())
    return collapse(low, high, nan, narrow=narrow)


def _overflow(
    x: Interval, axis: int, low: Array, high: Array, nan: Array | None, g: float
) -> tuple[Array, Array, Array | None]:
    """The overflow rule: infinities and NaN that some order reaches although the exact sum is finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        plus = np.maximum(x.hi, 0.0).sum(axis=axis, keepdims=True) * (1 + g)
        minus = np.maximum(-x.lo, 0.0).sum(axis=axis, keepdims=True) * (1 + g)
    up, down = plus >= OVERFLOW, minus >= OVERFLOW
    sure_up = np.isposinf(x.lo).any(axis=axis, keepdims=True)
    sure_down = np.isneginf(x.hi).any(axis=axis, keepdims=True)
    low = np.where(np.isnan(low), np.where(sure_up & ~sure_down, np.inf, -np.inf), low)
    high = np.where(np.isnan(high), np.where(sure_down & ~sure_up, -np.inf, np.inf), high)
    high, low = np.where(up & ~sure_down, np.inf, high), np.where(down & ~sure_up, -np.inf, low)
    both, sure = up & down, sure_up & sure_down
    low = np.where(sure, 1.0, np.where(sure_up & ~down, np.inf, low))
    high = np.where(sure, 1.0, np.where(sure_down & ~up, -np.inf, high))
    state = np.where(sure, ONLY, np.where(both, MAY, 0)).astype(np.uint8)
    if not state.any():
        return low, high, nan
    return low, high, state if nan is None else np.maximum(nan, state)


def within(low: Array, high: Array, free: Freedom) -> tuple[Array, Array]:
    """Real ends joined with their fp32 roundings (an fp32 result of a bound lies beside it, a wider one inside)."""
    f_low, f_high = to_f32(low), to_f32(high)
    return (np.minimum(low, f_low), np.maximum(high, f_high)) if free.wide else (f_low, f_high)


def variance_range(
    x: Interval, mean: Interval, axis: int, depth: int | None, free: Freedom
) -> Interval | None:
    """Mean of (x - mean)^2 in two passes: [V (1 - g(d + 5)), (V + dm^2)(1 + g(d + 5))], dm = error of the mean.

    The error of the mean enters squared, because sum (x - m) = n (mean(x) - m). Holds for one-value x with
    2^-50 (2^-36 where flushed) <= max |x - m| and max |x| <= 2^50; returns None outside it (go step by step).
    """
    if not x.same or x.nan is not None or not mean.lo.size:
        return None
    n = x.shape[axis]
    d = n - 1 if depth is None else min(depth, n - 1)
    with np.errstate(invalid="ignore", over="ignore"):
        center = x.lo.mean(axis=axis, keepdims=True)
        c = x.lo - center
        spread = np.abs(c).max(axis=axis, keepdims=True)
        largest = np.abs(x.lo).max(axis=axis, keepdims=True)
    if not bool((largest <= 2.0**50).all()):
        return None
    if not bool((spread >= (2.0**-36 if free.ftz else 2.0**-50)).all()):
        return None
    v = (c * c).mean(axis=axis, keepdims=True)
    own = n * 2.0**-52 * largest
    dm = np.maximum(np.abs(mean.hi - center), np.abs(center - mean.lo)) + own
    g = gamma(d + 5) + n * 2.0**-52
    low, high = v * (1 - g), (v + dm * dm) * (1 + g)
    low, high = within(low, high, free)
    return Interval(low, high, mean.nan, narrow=False)


def welford_range(
    x: Interval, axis: int, depth: int | None, free: Freedom
) -> tuple[Interval, Interval]:
    """Mean and variance from moments of blocks merged along any tree in which no value meets more than `depth` merges.

    A merge of blocks of a and b values, n = a + b: delta = m_b - m_a; m = m_a + (b / n) delta;
    S = S_a + S_b + delta^2 a b / n; with b = 1 also S_a + delta (x - m) (Welford 1962; Chan, Golub and LeVeque 1983).

    Mean. With mu = max |x| and D = max x - min x the rounding errors of one merge are at most u (mu + 3 D) (1 + 8 u), and
    the blocks' own errors are averaged: E = depth u (mu + 3 D), plus what is flushed.
    Variance. Every delta and x - m is within H = 2 E + 2 u D of the true one, so with w = a b / n a merge misses its
    exact term by 2 w (2 |delta| H + H^2) at most (the 2 is for Welford's product, where w >= 1/2). sum w delta^2 = n V, and
    sum w <= n max(1, log2(n) / 2) = n L^2 as w <= min(a, b): by Cauchy and Schwarz V moves by at most
    4 L H sqrt(V) + 2 L^2 H^2. All terms are non-negative; each meets at most 2 depth + 8 roundings.

    A block merged into an empty one squares its mean: from 2^62 on NaN is allowed. A row with a NaN or an infinity has
    an infinite or NaN mean and variance, hence only NaN in what (x - mean) / sqrt(variance) gives.
    """
    n = x.shape[axis]
    d = n - 1 if depth is None else min(depth, n - 1)
    nan = np.zeros(x.lo.shape, bool) if x.nan is None else x.nan > 0
    bad = (nan | ~np.isfinite(x.lo)).any(axis=axis, keepdims=True)
    values = np.where(bad, 0.0, x.lo)
    center = values.mean(axis=axis, keepdims=True)
    c = values - center
    v = (c * c).mean(axis=axis, keepdims=True)
    mu = np.abs(values).max(axis=axis, keepdims=True)
    span = values.max(axis=axis, keepdims=True) - values.min(axis=axis, keepdims=True)
    # float64's own error of centre and v
    own = n * 2.0**-52 * mu
    error = (1 + 2.0**-20) * d * U * (mu + 3 * span) + 4 * (d + 1) * TINY
    error = np.where(span == 0, 0.0, error) + np.where(span == 0, 2.0**-52 * mu, own)
    h = 2 * error + 2 * U * span
    lead = math.sqrt(max(1.0, math.log2(n) / 2)) if n > 1 else 1.0
    g = gamma(2 * d + 8) + n * 2.0**-52
    move = 4 * lead * h * np.sqrt(v) + 2 * lead * lead * h * h + own * own
    low = np.maximum(v - move, 0.0) * (1 - g)
    high = np.where(span == 0, own * own, (v + move) * (1 + g) + 8 * TINY)
    low = np.where(span == 0, 0.0, np.maximum(low - 8 * TINY, 0.0))
    high = np.where(mu >= 2.0**62, np.inf, high)
    state = np.where(bad, ONLY, np.where(mu >= 2.0**62, MAY, 0)).astype(np.uint8)
    mean = Interval(center - error, center + error, narrow=False)
    wild = mu >= 2.0**125
    if wild.any():
        mean = Interval(
            np.where(wild, -np.inf, mean.lo), np.where(wild, np.inf, mean.hi), narrow=False
        )
    low, high = within(low, high, free)
    return mean, Interval(low, high, state if state.any() else None, narrow=False)


def whole(value: Any) -> float:
    """The number as float64 (scalars of contracts are exact decimals rounded once)."""
    return float(value)
