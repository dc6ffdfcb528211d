"""Interval values and how one step of a kernel is settled; `contract.interval` has the operations.

An `Interval` holds, for every element, lo <= hi in float64 (one array where they coincide), whether a NaN may or must
appear, and the sign of zero bit for bit (-0 below +0).

How a step is settled. The ends are computed in float64. Where the float64 result is not exact it is moved outward by
one or two float64 ulps, so that the ends enclose the real value; then each end is joined with its rounding to fp32
(freedom `wide`: an unnamed step may be kept wider). float64 holds the exact product of two fp32 values, and its
rounded sum, quotient and square root of fp32 values round to fp32 as the exact ones do (53 >= 2 * 24 + 2).

Flush to zero (freedom `ftz`): an element whose interval reaches into (0, 2^-126) also holds +0, into (-2^-126, 0) also
-0. `raw` values have not been through a step that says so: they are treated the same when a step reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TINY = float.fromhex("0x1p-126")
BIG = float.fromhex("0x1p127")
# fp32 rounds to infinity from here: 2^128 (1 - 2^-25).
OVERFLOW = float.fromhex("0x1.ffffffp127")
# One float64 ulp at least, two at most: x -+ |x| 2^-52.
NUDGE = float.fromhex("0x1p-52")
# The ends of float64: a wide value beyond them is between these and infinity or zero.
LEAST, MOST = float.fromhex("0x1p-1074"), float.fromhex("0x1.fffffffffffffp1023")
MAY, ONLY = 1, 2

#: Bounds of magnitudes, all of them calm.
Span = tuple[float, float]

_HEAD = 1024

# Significand bits of an interval of which nothing is known.
WIDE_BITS = 53


@dataclass(frozen=True)
class Freedom:
    """Which of the two freedoms of every unnamed step are on."""

    wide: bool = True
    ftz: bool = True


class Interval:
    """lo <= hi, elementwise; `nan` is None or an array of {0: no, 1: may, 2: only}.

    `narrow`: both ends are fp32 values. `raw`: subnormals that a step which reads them may still flush.
    The ends of an element that is NaN only are placeholders.
    """

    __slots__ = ("bits", "hi", "lo", "nan", "narrow", "raw", "span")

    def __init__(
        self,
        lo: Array,
        hi: Array,
        nan: Array | None = None,
        *,
        narrow: bool = False,
        raw: bool = False,
    ):
        self.lo, self.hi, self.nan, self.narrow, self.raw = lo, hi, nan, narrow, raw
        self.bits = WIDE_BITS
        self.span: Span | None = None

    @property
    def same(self) -> bool:
        """Whether every element is one value (the ends are one array)."""
        return self.lo is self.hi

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lo.shape

    def map(self, f: Callable[[Array], Array]) -> Interval:
        """The same elements seen in another shape (indexing, reshape, transpose)."""
        lo = f(self.lo)
        hi = lo if self.same else f(self.hi)
        seen = None if self.nan is None else f(self.nan)
        view = Interval(lo, hi, seen, narrow=self.narrow, raw=self.raw)
        return tamed(view, self.span, self.bits)


def significant_bits(values: Array) -> int:
    """Most significand bits that any element uses, the hidden one included (53 at most)."""
    if not values.size:
        return 1
    word = int(np.bitwise_or.reduce(np.ascontiguousarray(values).view(np.int64), axis=None))
    fraction = word & ((1 << 52) - 1)
    return 53 - (52 if not fraction else (fraction & -fraction).bit_length() - 1)


def point(values: Array, *, narrow: bool, raw: bool = False) -> Interval:
    """One-value intervals; a NaN becomes nan = only."""
    values = np.asarray(values, np.float64)
    bad = np.isnan(values)
    if not bad.any():
        return Interval(values, values, None, narrow=narrow, raw=raw)
    clean = np.where(bad, 1.0, values)
    return Interval(clean, clean, np.where(bad, ONLY, 0).astype(np.uint8), narrow=narrow, raw=raw)


def to_f32(z: Array) -> Array:
    """Nearest fp32 value of each float64 value, as float64 (the hardware conversion rounds once)."""
    return z.astype(np.float32).astype(np.float64)


def lower(a: Array, b: Array) -> Array:
    """Elementwise minimum with -0 below +0; a NaN loses against a number."""
    r = np.fmin(a, b)
    zero = r == 0
    if zero.any():
        r = np.where(zero & (a == 0) & (b == 0) & (np.signbit(a) | np.signbit(b)), -0.0, r)
    return np.asarray(r)


def upper(a: Array, b: Array) -> Array:
    """Elementwise maximum with -0 below +0; a NaN loses against a number."""
    r = np.fmax(a, b)
    zero = r == 0
    if zero.any():
        r = np.where(zero & (a == 0) & (b == 0) & ~(np.signbit(a) & np.signbit(b)), 0.0, r)
    return np.asarray(r)


def magnitudes(z: Array) -> Span | None:
    """Smallest and largest magnitude, where all of them are calm: no zero, nothing near the subnormals or overflow, no
    NaN, so that nothing special can happen to any element. None elsewhere."""
    if z.size == 0:
        return 1.0, 1.0
    a = np.abs(z)
    return calm_span((float(a.min()), float(a.max())))


def calm_span(span: Span | None) -> Span | None:
    """The span, if it is calm."""
    return span if span is not None and span[0] >= TINY * 4 and span[1] <= BIG else None


def span_of(lo: Array, hi: Array) -> Span | None:
    """Bounds of the magnitudes of both ends, where both are calm. (An interval that holds zero between two such ends
    has no calm corners in a product, but each of its ends is one that may be rounded without a special.)"""
    first = magnitudes(lo)
    if hi is lo or first is None:
        return first
    second = magnitudes(hi)
    return None if second is None else (min(first[0], second[0]), max(first[1], second[1]))


def calm(z: Array) -> bool:
    """Whether nothing special can happen to any element."""
    return magnitudes(z) is not None


def collapse(
    lo: Array, hi: Array, nan: Array | None, *, narrow: bool, raw: bool = False
) -> Interval:
    """The interval, with one array where the ends coincide bit for bit."""
    if lo is not hi and lo.shape == hi.shape and _same_bits(lo, hi):
        hi = lo
    return Interval(lo, hi, nan, narrow=narrow, raw=raw)


def _same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape hold the same bits; most that do not differ among their first elements."""
    a, b = a.view(np.int64), b.view(np.int64)
    if a.size > 4 * _HEAD and a.flags.c_contiguous and b.flags.c_contiguous:
        a, b = a.reshape(-1), b.reshape(-1)
        if not np.array_equal(a[:_HEAD], b[:_HEAD]):
            return False
    return np.array_equal(a, b)


def join_nan(*parts: Array | None) -> Array | None:
    """NaN state of a step that any NaN operand turns to NaN."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    result = found[0]
    for part in found[1:]:
        result = np.maximum(result, part)
    return result


def flush_ends(lo: Array, hi: Array) -> tuple[Array, Array]:
    """The ends with zero joined where they reach into the subnormals."""
    down, up = (lo > 0) & (lo < TINY), (hi < 0) & (hi > -TINY)
    return (np.where(down, 0.0, lo) if down.any() else lo), (
        np.where(up, -0.0, hi) if up.any() else hi
    )


def flushed(x: Interval, free: Freedom | None) -> Interval:
    """The operand as an arithmetic step may read it: subnormal inputs may count as zero."""
    if free is None or not (free.ftz and x.raw):
        return x
    lo, hi = flush_ends(x.lo, x.hi)
    if lo is x.lo and hi is x.hi:
        return x
    return Interval(lo, hi, x.nan, narrow=x.narrow)


def settle(
    lo: Array,
    hi: Array,
    nan: Array | None,
    free: Freedom,
    exact: bool | Array,
    *,
    rounds_as_exact: bool = False,
    span: Span | None = None,
) -> Interval:
    """One unnamed fp32 step: outward nudge where inexact, join with the fp32 rounding, flush.

    Args:
        lo, hi: float64 ends (one array where they coincide).
        exact: True where the float64 ends are the exact results; an array says so element by element.
        span: bounds of both ends' magnitudes where the caller knows them calm (looked up where None).
        rounds_as_exact: the float64 ends round to fp32 as the exact results do (operands are fp32 values).
    """
    span = span or span_of(lo, hi)
    quiet = span is not None
    if exact is True:
        low, high = lo, hi
    else:
        low, high = _outward(lo, hi, quiet)
        if exact is not False:
            low, high = np.where(exact, lo, low), np.where(exact, hi, high)
    with np.errstate(over="ignore", invalid="ignore"):
        f_low = to_f32(lo if rounds_as_exact else low)
        f_high = f_low if low is high else to_f32(hi if rounds_as_exact else high)
    real, narrow = (low, high), True
    if not free.wide:
        low, high = f_low, f_high
    elif low is high and np.array_equal(low, f_low):
        low = high = f_low
    elif exact is True and np.array_equal(low, f_low) and np.array_equal(high, f_high):
        # nothing to round at either end, zeros of both signs among them
        low, high = f_low, f_high
    else:
        narrow = False
        # into the arrays of the roundings, which nothing else holds
        high = np.maximum(high, f_high, out=None if f_high is f_low else f_high)
        low = np.minimum(low, f_low, out=f_low)
    if not quiet:
        low, high, nan = settle_specials(low, high, nan, free, real)
    # the fp32 join moves an end by half an ulp at most
    near = None if span is None else (span[0] * (1 - 2.0**-23), span[1] * (1 + 2.0**-23))
    return tamed(Interval(low, high, nan, narrow=narrow), near, 24 if narrow else WIDE_BITS)


def tamed(x: Interval, span: Span | None, bits: int) -> Interval:
    """The interval with what is known of all its elements."""
    x.span, x.bits = span, bits
    return x


def _outward(lo: Array, hi: Array, quiet: bool) -> tuple[Array, Array]:
    if quiet:
        return _moved(lo, -NUDGE), _moved(hi, NUDGE)
    # The same step for the same value, so that a result does not depend on its neighbours. Zeros stay: they are
    # exact, or `contract.interval` has put float64's underflow between them and its smallest value.
    with np.errstate(invalid="ignore", over="ignore"):
        low = lo - np.maximum(np.abs(lo) * NUDGE, LEAST)
        high = hi + np.maximum(np.abs(hi) * NUDGE, LEAST)
    return (
        np.where((lo == 0) | ~np.isfinite(lo), lo, low),
        np.where((hi == 0) | ~np.isfinite(hi), hi, high),
    )


def _moved(x: Array, by: float) -> Array:
    out = np.abs(x)
    out *= by
    out += x
    return np.asarray(out)


def settle_specials(
    lo: Array,
    hi: Array,
    nan: Array | None,
    free: Freedom,
    real: tuple[Array, Array] | None = None,
) -> tuple[Array, Array, Array | None]:
    """NaN ends become the NaN state, subnormal results may be flushed.

    `real`: the ends before their rounding. Whether a result is subnormal may be asked before or after it is rounded
    (IEEE 754-2019, 7.5).
    """
    bad = np.isnan(lo) | np.isnan(hi)
    if bad.any():
        lo, hi = np.where(bad, 1.0, lo), np.where(bad, 1.0, hi)
        nan = join_nan(nan, np.where(bad, ONLY, 0).astype(np.uint8))
    if free.ftz:
        if real is not None and not free.wide:
            lo = np.where((lo == TINY) & (real[0] < TINY), 0.0, lo)
            hi = np.where((hi == -TINY) & (real[1] > -TINY), -0.0, hi)
        lo, hi = flush_ends(lo, hi)
    return lo, hi, nan


def ulp32(z: Array) -> Array:
    """The fp32 ulp of the binade of each value, at least 2^-149."""
    with np.errstate(invalid="ignore"):
        exponent = (np.abs(z).view(np.int64) >> 52) - (1023 + 23)
    return np.asarray(np.ldexp(1.0, np.maximum(exponent, -149).astype(np.int32)))
