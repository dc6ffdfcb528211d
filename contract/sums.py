"""Ranges of sums, means and variances over any legal order of at most a given depth.

u = 2^-24 is half an fp32 ulp of 1, g(h) = h u / (1 - h u), A the sum of the terms' magnitudes (upper ends), t = 2^-149
(2^-126 where results may be flushed). A sum of n terms in a tree through which no term makes more than d additions is
within g(d) A of the exact sum (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); float64 evaluation
adds n 2^-52 A. The bound is a worst case, not a statistical one: a row of equal values exceeds 6 sqrt(n) u A.
"""

from __future__ import annotations

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


def whole(value: Any) -> float:
    """The number as float64 (scalars of contracts are exact decimals rounded once)."""
    return float(value)
