"""Fused multiply-add: a b + c with one rounding, by rounding to odd.

The float64 product of two fp32 values is exact, but the float64 sum of it and c is not: rounded again to fp32 it may go
to the wrong side (24929 * 673 + 2^-30 gives 16777216, the fused result is 16777218). The residue of the sum (TwoSum)
turns it into round-to-odd, and a value rounded to odd at 53 bits rounds to 24 bits as the exact one does
(Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
"""

from __future__ import annotations

import numpy as np

from contract.interval import (
    NUDGE,
    Array,
    Freedom,
    Interval,
    _hull,
    _may,
    _nan_of,
    _two,
    flushed,
    join_nan,
    lower,
    settle,
    to_f32,
    upper,
)


def sum_to_odd(p: Array, c: Array) -> tuple[Array, Array]:
    """p + c rounded to odd in float64, and where the sum was inexact."""
    with np.errstate(invalid="ignore", over="ignore"):
        s = np.asarray(p + c)
        t = s - p
        residue = (p - (s - t)) + (c - t)
        inexact = np.isfinite(s) & np.isfinite(residue) & (residue != 0)
        if not inexact.any():
            return s, inexact
        toward_zero = np.where(np.signbit(residue) != np.signbit(s), np.nextafter(s, 0.0), s)
        odd = (np.ascontiguousarray(toward_zero).view(np.int64) | 1).view(np.float64)
        return np.where(inexact, odd, s), inexact


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """fp32 fused multiply-add of fp32 values given in float64."""
    with np.errstate(invalid="ignore", over="ignore"):
        return to_f32(sum_to_odd(np.asarray(a * b), c)[0])


def fused_multiply_add(a: Interval, b: Interval, c: Interval, free: Freedom) -> Interval:
    """The range of a b + c with one rounding over all corners; 0 * inf and inf - inf in the box: NaN may."""
    a, b, c = flushed(a, free), flushed(b, free), flushed(c, free)
    with np.errstate(invalid="ignore", over="ignore"):
        p_lo, p_hi = _hull([np.asarray(x * y) for x in _two(a) for y in _two(b)])
    nan = _nan_of(a, b)
    zero_a, zero_b = (a.lo <= 0) & (a.hi >= 0), (b.lo <= 0) & (b.hi >= 0)
    inf_a, inf_b = np.isinf(a.lo) | np.isinf(a.hi), np.isinf(b.lo) | np.isinf(b.hi)
    clash = (zero_a & inf_b) | (zero_b & inf_a)
    if clash.any():
        nan = _may(clash, nan, np.isnan(p_lo))
        p_lo, p_hi = np.where(clash, -np.inf, p_lo), np.where(clash, np.inf, p_hi)
    shape = np.broadcast_shapes(p_lo.shape, c.shape)
    parts = [None if x is None else np.broadcast_to(x, shape) for x in (nan, c.nan)]
    nan = join_nan(*parts)
    lo, odd_lo = sum_to_odd(p_lo, c.lo)
    one = p_lo is p_hi and c.same
    hi, odd_hi = (lo, odd_lo) if one else sum_to_odd(p_hi, c.hi)
    opposite = (np.isposinf(p_hi) & np.isneginf(c.lo)) | (np.isneginf(p_lo) & np.isposinf(c.hi))
    if opposite.any() or np.isnan(lo).any() or np.isnan(hi).any():
        nan = _may(np.broadcast_to(opposite, shape), nan, np.isnan(lo) & np.isnan(hi))
        both = np.isnan(lo) & np.isnan(hi)
        lo = np.where(np.isnan(lo), np.where(both, 1.0, -np.inf), lo)
        hi = np.where(np.isnan(hi), np.where(both, 1.0, np.inf), hi)
        one = False
    narrow = a.narrow and b.narrow and c.narrow
    if narrow and one and not odd_lo.any():
        return settle(lo, lo, nan, free, True)
    f_lo, f_hi = to_f32(lo), to_f32(hi)
    real_lo = np.where(odd_lo, lo - np.abs(lo) * NUDGE, lo)
    real_hi = np.where(odd_hi, hi + np.abs(hi) * NUDGE, hi)
    if not narrow:
        # the float64 products are rounded: their error is relative to the product, not to the sum
        slack = (np.maximum(np.abs(p_lo), np.abs(p_hi)) + np.abs(lo) + np.abs(hi)) * NUDGE
        slack = np.where(np.isfinite(slack), slack, 0.0)
        real_lo, real_hi = real_lo - slack, real_hi + slack
        f_lo, f_hi = to_f32(real_lo), to_f32(real_hi)
    if not free.wide:
        return settle(f_lo, f_lo if one and narrow else f_hi, nan, free, True)
    return settle(lower(real_lo, f_lo), upper(real_hi, f_hi), nan, free, True)
