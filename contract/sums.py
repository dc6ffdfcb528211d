"""Ranges of sums, means and variances over any legal order of at most a given depth.

u = 2^-24 is half an fp32 ulp of 1, g(h) = h u / (1 - h u), t = 2^-149 (2^-126 where results may be flushed). A sum of n
terms in a tree through which no term makes more than d additions is within g(d) sum |x_i| of the exact sum (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2); float64 evaluation adds n 2^-52 of it. x - g |x| and
x + g |x| grow with x, so each end of the sum takes its own ends of the terms. The bound is a worst case, not a
statistical one: a row of equal values exceeds 6 sqrt(n) u sum |x_i|.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from contract.endpoints import (
    BIG,
    MAY,
    ONLY,
    OVERFLOW,
    TINY,
    Array,
    Freedom,
    Interval,
    collapse,
    flushed,
    to_f32,
)

U = float.fromhex("0x1p-24")


def gamma(h: float, u: float = U) -> float:
    """g(h) = h u / (1 - h u), the relative error of h chained roundings."""
    return h * u / (1.0 - h * u)


def exact_rows(
    x: Interval, magnitude: Array, axis: int, free: Freedom, *, start: float = 0.0, bits: int = 24
) -> Array:
    """Where every order gives the exact sum: all terms one-value multiples of q with sum |terms| <= 2^bits q.

    `start`, the magnitude of what the accumulator starts from, counts as a term.
    The smallest admissible q is 2^ceil(log2(A 2^-bits)), at least t; a row of multiples of a larger power of two is a
    row of multiples of this one too.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        total = magnitude + start
        exponent = np.ceil(np.log2(np.where(total > 0, total, 1.0))) - bits
        floor = -126 if free.ftz else -149
        exponent = np.clip(exponent, floor, 128).astype(np.int32)
        unit = np.ldexp(1.0, -exponent)
        ok = np.isfinite(total) & (total * unit <= 2.0**bits)
        ok = ok & (np.rint(start * unit) == start * unit)
        lo = x.lo
        # a few columns first: most rows fail here
        head = np.take(lo, range(min(8, lo.shape[axis])), axis=axis) * unit
        ok = ok & (np.rint(head) == head).all(axis=axis, keepdims=True)
        if not ok.any():
            return np.asarray(ok)
        scaled = lo * unit
        ok = ok & (np.rint(scaled) == scaled).all(axis=axis, keepdims=True)
        if not x.same:
            ok = ok & (x.lo == x.hi).all(axis=axis, keepdims=True)
    return np.asarray(ok)


def sum_range(x: Interval, axis: int, depth: int | None, free: Freedom) -> Interval:
    """The sum along one axis (kept with size 1), any order of at most `depth` additions a term (n - 1 where None).

    An accumulator may start from +0: a sum of -0 may be either zero. Terms that cannot be negative keep it from being so.
    """
    x = flushed(x, free)
    n = x.shape[axis]
    if n == 1:
        hi = np.where(x.hi == 0, 0.0, x.hi) if (x.hi == 0).any() else x.hi
        return collapse(x.lo, hi, x.nan, narrow=x.narrow)
    d = n - 1 if depth is None else min(depth, n - 1)
    least = x.lo.min(axis=axis, keepdims=True)
    positive = np.asarray(least >= 0)
    with np.errstate(invalid="ignore", over="ignore"):
        lo = x.lo.sum(axis=axis, keepdims=True)
        hi = lo if x.same else x.hi.sum(axis=axis, keepdims=True)
        if positive.all():
            low_size, magnitude = lo, hi
        else:
            low_size = np.abs(x.lo).sum(axis=axis, keepdims=True)
            magnitude = low_size if x.same else np.abs(x.hi).sum(axis=axis, keepdims=True)
        g, lost = gamma(d) + n * 2.0**-52, n * (TINY if free.ftz else 2.0**-149)
        exact = exact_rows(x, magnitude, axis, free)
        low = np.where(exact, lo, lo - (g * low_size + lost))
        high = np.where(exact, hi, hi + (g * magnitude + lost))
    low, high = _zero_signs(x, axis, low, high, positive)
    nan = None if x.nan is None else x.nan.max(axis=axis, keepdims=True)
    if not magnitude.size or not (float(max(magnitude.max(), low_size.max())) < BIG):
        low, high, nan = _overflow(x, axis, low, high, nan, g)
    return collapse(low, high, nan, narrow=bool(exact.all()))


def _zero_signs(
    x: Interval, axis: int, low: Array, high: Array, positive: Array
) -> tuple[Array, Array]:
    """Sums of non-negative terms do not cross zero; a sum that may be zero may have either sign."""
    if positive.any():
        low = np.where(positive, np.maximum(low, 0.0), low)
    zero = (low <= 0) & (high >= 0)
    if zero.any():
        # -0 comes from terms that may all be -0
        minus = ~positive
        if positive.any():
            minus = minus | np.signbit(x.lo).all(axis=axis, keepdims=True)
        low = np.where(zero & (low == 0), np.where(minus, -0.0, 0.0), low)
        high = np.where(zero & (high == 0), 0.0, high)
    return low, high


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
    low, high = (
        np.where(np.isnan(low) | down, -np.inf, low),
        np.where(np.isnan(high) | up, np.inf, high),
    )
    # an infinite term makes the sum that infinity or, where it meets the other one, a NaN
    low, high = np.where(sure_up, np.inf, low), np.where(sure_up, np.inf, high)
    low, high = np.where(sure_down, -np.inf, low), np.where(sure_down, -np.inf, high)
    state = np.where(sure_up & sure_down, ONLY, np.where(up & down, MAY, 0)).astype(np.uint8)
    if not state.any():
        return low, high, nan
    return low, high, state if nan is None else np.maximum(nan, state)


def within(low: Array, high: Array, free: Freedom) -> tuple[Array, Array]:
    """Real ends joined with their fp32 roundings (an fp32 result of a bound lies beside it, a wider one inside)."""
    f_low, f_high = to_f32(low), to_f32(high)
    return (np.minimum(low, f_low), np.maximum(high, f_high)) if free.wide else (f_low, f_high)


def variance_range(
    x: Interval,
    mean: Interval,
    axis: int,
    depth: int | None,
    free: Freedom,
    steps: Callable[[], Interval] | None = None,
) -> Interval | None:
    """Mean of (x - mean)^2 in two passes: [V (1 - g(d + 5)), (V + dm^2)(1 + g(d + 5))], dm = error of the mean.

    The error of the mean enters squared, because sum (x - m) = n (mean(x) - m). Holds for fp32 x of one value with
    2^-50 (2^-36 where flushed) <= max |x - m|, max |x| <= 2^50, |m| <= 2^51 and n <= 2^24, row by row. Rows outside it
    take the range of `steps`, the single steps, and so do rows whose mean is one value: they see exact deviations.
    None where a row needs steps and there are none.
    """
    n = x.shape[axis]
    if not (x.same and x.narrow and mean.lo.size and n <= 2**24):
        return None if steps is None else steps()
    d = n - 1 if depth is None else min(depth, n - 1)
    # The rows outside the domain are computed too, and not taken.
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        center = x.lo.mean(axis=axis, keepdims=True)
        c = x.lo - center
        spread = np.abs(c).max(axis=axis, keepdims=True)
        largest = np.abs(x.lo).max(axis=axis, keepdims=True)
        inside = (largest <= 2.0**50) & (spread >= (2.0**-36 if free.ftz else 2.0**-50))
        inside = inside & (np.maximum(np.abs(mean.lo), np.abs(mean.hi)) <= 2.0**51)
        if x.nan is not None:
            inside = inside & ~(x.nan > 0).any(axis=axis, keepdims=True)
        if steps is not None:
            inside = inside & (mean.lo != mean.hi)
        if not inside.any() or (steps is None and not inside.all()):
            return None if steps is None else steps()
        v = (c * c).mean(axis=axis, keepdims=True)
        own = n * 2.0**-52 * largest
        dm = np.maximum(np.abs(mean.hi - center), np.abs(center - mean.lo)) + own
        # float64 evaluation, and what squares lose below the smallest values
        g = gamma(d + 5) + n * 2.0**-49
        low, high = within(v * (1 - g), (v + dm * dm) * (1 + g), free)
    if inside.all() or steps is None:
        return Interval(low, high, mean.nan, narrow=False)
    slow = steps()
    nan = slow.nan
    if nan is not None:
        nan = np.where(inside, 0 if mean.nan is None else mean.nan, nan).astype(np.uint8)
    return Interval(
        np.where(inside, low, slow.lo), np.where(inside, high, slow.hi), nan, narrow=False
    )
