"""Fused multiply-add: a b + c with one rounding, by rounding to odd.

The float64 product of two fp32 values is exact, but the float64 sum of it and c is not: rounded again to fp32 it may go
to the wrong side (24929 * 673 + 2^-30 gives 16777216, the fused result is 16777218). The residue of the sum (TwoSum)
turns it into round-to-odd, and a value rounded to odd at 53 bits rounds to 24 bits as the exact one does
(Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
"""

from __future__ import annotations

import numpy as np

from contract.endpoints import LEAST, NUDGE, Array, Freedom, Interval, flushed, settle, to_f32
from contract.interval import nan_of, product_hull, sum_specials


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
    p_lo, p_hi, p_nan, _ = product_hull(a, b)
    product = Interval(p_lo, p_hi, p_nan)
    lo, odd_lo = sum_to_odd(p_lo, c.lo)
    hi, odd_hi = (lo, odd_lo) if product.same and c.same else sum_to_odd(p_hi, c.hi)
    lo, hi, nan = sum_specials(lo, hi, nan_of(product, c), product, c)
    if a.narrow and b.narrow:
        # the product is exact in float64, so that its sum with any float64 value is rounded to odd once
        odd = odd_lo if odd_hi is odd_lo else odd_lo | odd_hi
        return settle(lo, hi, nan, free, ~odd if odd.any() else True, rounds_as_exact=True)
    # Else the float64 product is rounded: its error is relative to the product, not to the sum.
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.abs(p_lo), np.abs(p_hi))
        slack = np.where(size > 0, np.maximum(size * NUDGE, LEAST), 0.0)
        slack = np.where(np.isfinite(slack), slack, 0.0)
        lo, hi = np.where(slack > 0, lo - slack, lo), np.where(slack > 0, hi + slack, hi)
    return settle(lo, hi, nan, free, False)
