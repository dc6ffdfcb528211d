"""Interval values: the sets of numbers that a step of a kernel may produce.

An `Interval` holds, for every element, lo <= hi in float64 (one array where they coincide), whether a NaN may or must
appear, and the sign of zero bit for bit (-0 below +0). The functions here are the arithmetic of the range reading:
each computes the real-valued hull of one operation and then lets the step be an fp32 one or a wider one.

How a step is settled. The ends are computed in float64. Where the float64 result is not exact it is moved outward by
one or two float64 ulps, so that the ends enclose the real value; then each end is joined with its rounding to fp32
(freedom `wide`: an unnamed step may be kept wider). float64 holds the exact product of two fp32 values, and its
rounded sum, quotient and square root of fp32 values round to fp32 as the exact ones do (53 >= 2 * 24 + 2).

Flush to zero (freedom `ftz`): an element whose interval reaches into (0, 2^-126) also holds +0, into (-2^-126, 0) also
-0; operands are treated the same before their first arithmetic step.
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
# One float64 ulp at least, two at most: x -+ |x| 2^-52.
NUDGE = float.fromhex("0x1p-52")
MAY, ONLY = 1, 2


@dataclass(frozen=True)
class Freedom:
    """Which of the two freedoms of every unnamed step are on."""

    wide: bool = True
    ftz: bool = True


class Interval:
    """lo <= hi, elementwise; `nan` is None or an array of {0: no, 1: may, 2: only}.

    `narrow`: both ends are fp32 values. `raw`: an operand that no arithmetic step has read yet.
    """

    __slots__ = ("hi", "lo", "nan", "narrow", "raw")

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
        return Interval(
            lo, hi, None if self.nan is None else f(self.nan), narrow=self.narrow, raw=self.raw
        )


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
    return r


def upper(a: Array, b: Array) -> Array:
    """Elementwise maximum with -0 below +0; a NaN loses against a number."""
    r = np.fmax(a, b)
    zero = r == 0
    if zero.any():
        r = np.where(zero & (a == 0) & (b == 0) & ~(np.signbit(a) & np.signbit(b)), 0.0, r)
    return r


def calm(z: Array) -> bool:
    """No zero, nothing near the subnormals or overflow, no NaN: nothing special can happen to any element."""
    if z.size == 0:
        return True
    a = np.abs(z)
    return bool(a.min() >= TINY * 4) and bool(a.max() <= BIG)


def collapse(lo: Array, hi: Array, nan: Array | None, *, narrow: bool) -> Interval:
    """The interval, with one array where the ends coincide bit for bit."""
    if (
        lo is not hi
        and lo.shape == hi.shape
        and np.array_equal(lo.view(np.int64), hi.view(np.int64))
    ):
        hi = lo
    return Interval(lo, hi, nan, narrow=narrow)


def join_nan(*parts: Array | None) -> Array | None:
    """NaN state of a step that any NaN operand turns to NaN."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    result = found[0]
    for part in found[1:]:
        result = np.maximum(result, part)
    return result


def flushed(x: Interval, free: Freedom) -> Interval:
    """The operand as an arithmetic step may read it: subnormal inputs may count as zero."""
    if not (free.ftz and x.raw):
        return x
    lo, hi = _flush(x.lo, x.hi)
    if lo is x.lo and hi is x.hi:
        return x
    return Interval(lo, hi, x.nan, narrow=x.narrow)


def _flush(lo: Array, hi: Array) -> tuple[Array, Array]:
    down, up = (lo > 0) & (lo < TINY), (hi < 0) & (hi > -TINY)
    return (np.where(down, 0.0, lo) if down.any() else lo), (
        np.where(up, -0.0, hi) if up.any() else hi
    )


def settle(lo: Array, hi: Array, nan: Array | None, free: Freedom, exact: bool | Array) -> Interval:
    """One unnamed fp32 step: outward nudge where inexact, join with the fp32 rounding, flush.

    Args:
        lo, hi: float64 ends (one array where they coincide).
        exact: True where the float64 ends are the exact results; an array says so element by element.
    """
    one = lo is hi
    if exact is True:
        low, high = lo, hi
    else:
        if calm(lo) and (one or calm(hi)):
            low, high = lo - np.abs(lo) * NUDGE, hi + np.abs(hi) * NUDGE
        else:
            low, high = _nudge_slow(lo, hi)
        if exact is not False:
            low, high = np.where(exact, lo, low), np.where(exact, hi, high)
    with np.errstate(over="ignore", invalid="ignore"):
        f_low = to_f32(low)
        f_high = f_low if low is high else to_f32(high)
    narrow = True
    if free.wide:
        if low is high and np.array_equal(low, f_low):
            low = high = f_low
        else:
            narrow = False
            low, high = np.minimum(low, f_low), np.maximum(high, f_high)
    else:
        low, high = f_low, f_high
    if not calm(low) or (low is not high and not calm(high)):
        low, high, nan = _settle_specials(low, high, nan, free)
    return Interval(low, high, nan, narrow=narrow)


def _nudge_slow(lo: Array, hi: Array) -> tuple[Array, Array]:
    # zeros that come from an exact zero stay; a zero by float64 underflow cannot come from fp32 values
    low = np.where((lo == 0) | ~np.isfinite(lo), lo, np.nextafter(lo, -np.inf))
    high = np.where((hi == 0) | ~np.isfinite(hi), hi, np.nextafter(hi, np.inf))
    return low, high


def _settle_specials(
    lo: Array, hi: Array, nan: Array | None, free: Freedom
) -> tuple[Array, Array, Array | None]:
    bad = np.isnan(lo) | np.isnan(hi)
    if bad.any():
        lo, hi = np.where(bad, 1.0, lo), np.where(bad, 1.0, hi)
        nan = join_nan(nan, np.where(bad, ONLY, 0).astype(np.uint8))
    if free.ftz:
        lo, hi = _flush(lo, hi)
    return lo, hi, nan


def _two(x: Interval) -> tuple[Array, ...]:
    return (x.lo,) if x.same else (x.lo, x.hi)


def _hull(corners: list[Array]) -> tuple[Array, Array]:
    if len(corners) == 1:
        return corners[0], corners[0]
    lo, hi = corners[0], corners[0]
    for corner in corners[1:]:
        lo, hi = lower(lo, corner), upper(hi, corner)
    return lo, hi


def _holds(x: Interval, what: str) -> Array:
    if what == "zero":
        return (x.lo <= 0) & (x.hi >= 0)
    if what == "+inf":
        return np.isposinf(x.hi)
    if what == "-inf":
        return np.isneginf(x.lo)
    return np.isposinf(x.hi) | np.isneginf(x.lo)


def _may(flag: Array, nan: Array | None, only: Array | None = None) -> Array | None:
    if not flag.any():
        return nan
    state = np.where(flag, MAY, 0)
    if only is not None:
        state = np.where(flag & only, ONLY, state)
    return (
        join_nan(nan, state.astype(np.uint8))
        if nan is None or nan.shape == state.shape
        else join_nan(*np.broadcast_arrays(nan, state.astype(np.uint8)))
    )


def _nan_of(a: Interval, b: Interval) -> Array | None:
    if a.nan is None and b.nan is None:
        return None
    shape = np.broadcast_shapes(a.shape, b.shape)
    return join_nan(*(None if x.nan is None else np.broadcast_to(x.nan, shape) for x in (a, b)))


def add(a: Interval, b: Interval, free: Freedom) -> Interval:
    """a + b; inf - inf anywhere in the box: NaN may."""
    a, b = flushed(a, free), flushed(b, free)
    with np.errstate(invalid="ignore", over="ignore"):
        lo = a.lo + b.lo
        hi = lo if a.same and b.same else a.hi + b.hi
        exact = _sum_exact(a.lo, b.lo, lo)
        if hi is not lo:
            exact = exact & _sum_exact(a.hi, b.hi, hi)
    nan = _nan_of(a, b)
    if not (calm(lo) and (hi is lo or calm(hi))):
        clash = (_holds(a, "+inf") & _holds(b, "-inf")) | (_holds(a, "-inf") & _holds(b, "+inf"))
        nan = _may(clash, nan, np.isnan(lo) & np.isnan(hi))
        lo, hi = _fill_clash(lo, hi, a, b)
    return settle(lo, hi, nan, free, True if exact.all() else exact)


def _fill_clash(lo: Array, hi: Array, a: Interval, b: Interval) -> tuple[Array, Array]:
    # An infinity met by its opposite: the numbers beside it are the ends that are left.
    bad_lo, bad_hi = np.isnan(lo), np.isnan(hi)
    if not bad_lo.any() and not bad_hi.any():
        return lo, hi
    both = bad_lo & bad_hi
    lo = np.where(bad_lo, np.where(both, 1.0, -np.inf), lo)
    hi = np.where(bad_hi, np.where(both, 1.0, np.inf), hi)
    return lo, hi


def _sum_exact(a: Array, b: Array, s: Array) -> Array:
    # TwoSum's residue is zero
    with np.errstate(invalid="ignore", over="ignore"):
        t = s - a
        return ((a - (s - t)) + (b - t) == 0) | ~np.isfinite(s)


def neg(a: Interval) -> Interval:
    """-a, exact."""
    lo = -a.hi
    return Interval(lo, lo if a.same else -a.lo, a.nan, narrow=a.narrow, raw=a.raw)


def absolute(a: Interval) -> Interval:
    """|a|, exact."""
    if a.same:
        lo = np.abs(a.lo)
        return Interval(lo, lo, a.nan, narrow=a.narrow, raw=a.raw)
    low, high = np.abs(a.lo), np.abs(a.hi)
    across = (a.lo <= 0) & (a.hi >= 0)
    return Interval(
        np.where(across, 0.0, np.minimum(low, high)), np.maximum(low, high), a.nan, narrow=a.narrow
    )


def mul(a: Interval, b: Interval, free: Freedom) -> Interval:
    """a b over the corners; 0 * inf anywhere in the box: NaN may."""
    a, b = flushed(a, free), flushed(b, free)
    with np.errstate(invalid="ignore", over="ignore"):
        lo, hi = _hull([x * y for x in _two(a) for y in _two(b)])
    nan = _nan_of(a, b)
    exact = a.narrow and b.narrow
    if not (calm(lo) and (hi is lo or calm(hi))):
        clash = (_holds(a, "zero") & _holds(b, "inf")) | (_holds(a, "inf") & _holds(b, "zero"))
        nan = _may(clash, nan, np.isnan(lo))
        if clash.any():
            # inside the box 0 times a finite neighbour of infinity is 0, and a small value times infinity is infinite
            wide = clash & ~np.isnan(lo) & (not (a.same and b.same))
            lo, hi = (
                np.where(wide, np.minimum(lo, -0.0), lo),
                np.where(wide, np.maximum(hi, 0.0), hi),
            )
            lo, hi = np.where(np.isnan(lo), 1.0, lo), np.where(np.isnan(hi), 1.0, hi)
    if exact is False:
        return settle(lo, hi, nan, free, (lo == 0) & (hi == 0))
    return settle(lo, hi, nan, free, True)


def square(a: Interval, free: Freedom) -> Interval:
    """a^2: never negative, though the product of two ranges that straddle zero would be."""
    m = absolute(flushed(a, free))
    with np.errstate(over="ignore"):
        lo = m.lo * m.lo
        hi = lo if m.same else m.hi * m.hi
    return settle(lo, hi, m.nan, free, True if a.narrow else (lo == 0) & (hi == 0))


def div(a: Interval, b: Interval, free: Freedom) -> Interval:
    """a / b over the corners; a divisor range that holds zero and more: everything."""
    a, b = flushed(a, free), flushed(b, free)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        lo, hi = _hull([x / y for x in _two(a) for y in _two(b)])
        exact: bool | Array = False
        if a.narrow and b.narrow and a.same and b.same:
            exact = (lo * b.lo == a.lo) & (to_f32(lo) == lo) | ~np.isfinite(lo)
            exact = bool(exact.all()) or exact
    nan = _nan_of(a, b)
    if not (calm(lo) and (hi is lo or calm(hi))):
        zero_b, inf_b = _holds(b, "zero"), _holds(b, "inf")
        clash = (_holds(a, "zero") & zero_b) | (_holds(a, "inf") & inf_b)
        nan = _may(clash, nan, np.isnan(lo))
        lo, hi = np.where(np.isnan(lo), 1.0, lo), np.where(np.isnan(hi), 1.0, hi)
        if not (a.same and b.same):
            everything = (zero_b & (np.signbit(b.lo) | (b.lo != 0) | (b.hi != 0))) & ~(
                (b.lo == b.hi) & (np.signbit(b.lo) == np.signbit(b.hi))
            )
            wide = everything | (clash & ~((a.lo == a.hi) & (b.lo == b.hi)))
            lo, hi = np.where(wide, -np.inf, lo), np.where(wide, np.inf, hi)
    return settle(lo, hi, nan, free, exact)


def maximum(a: Interval, b: Interval) -> Interval:
    """max(a, b); of -0 and +0 either may come out."""
    return _pick(a, b, upper, np.maximum)


def minimum(a: Interval, b: Interval) -> Interval:
    """min(a, b); of -0 and +0 either may come out."""
    return _pick(a, b, lower, np.minimum)


def _pick(a: Interval, b: Interval, order: Callable[[Array, Array], Array], plain: Any) -> Interval:
    lo, hi = order(a.lo, b.lo), order(a.hi, b.hi)
    zero = (
        (a.lo <= 0)
        & (a.hi >= 0)
        & (b.lo <= 0)
        & (b.hi >= 0)
        & (plain(a.lo, b.lo) <= 0)
        & (plain(a.hi, b.hi) >= 0)
    )
    differ = zero & (np.signbit(a.lo) | np.signbit(b.lo)) & ~(np.signbit(a.hi) & np.signbit(b.hi))
    if differ.any():
        lo = np.where(differ & (lo == 0), -0.0, lo)
        hi = np.where(differ & (hi == 0), 0.0, hi)
    return collapse(lo, hi, _nan_of(a, b), narrow=a.narrow and b.narrow)


def where(known: Array, maybe: Array | None, a: Interval, b: Interval) -> Interval:
    """a where known, b where not, the join of both where `maybe` (an undecided comparison)."""
    lo, hi = np.where(known, a.lo, b.lo), np.where(known, a.hi, b.hi)
    shape = lo.shape
    states = [
        np.zeros(shape, np.uint8) if x.nan is None else np.broadcast_to(x.nan, shape)
        for x in (a, b)
    ]
    nan: Array | None = np.where(known, *states)
    if maybe is not None and maybe.any():
        lo = np.where(maybe, lower(*np.broadcast_arrays(a.lo, b.lo)), lo)
        hi = np.where(maybe, upper(*np.broadcast_arrays(a.hi, b.hi)), hi)
        nan = np.where(maybe, _either(states[0], states[1]), nan)
    return collapse(
        lo, hi, nan if nan is not None and nan.any() else None, narrow=a.narrow and b.narrow
    )


def union(a: Interval, b: Interval) -> Interval:
    """The join of two candidates."""
    lo, hi = lower(*np.broadcast_arrays(a.lo, b.lo)), upper(*np.broadcast_arrays(a.hi, b.hi))
    nan = None
    if a.nan is not None or b.nan is not None:
        states = [
            np.zeros(lo.shape, np.uint8) if x.nan is None else np.broadcast_to(x.nan, lo.shape)
            for x in (a, b)
        ]
        # the ends of an element that is NaN only say nothing
        for state, other in ((states[0], b), (states[1], a)):
            lo, hi = np.where(state == ONLY, other.lo, lo), np.where(state == ONLY, other.hi, hi)
        nan = _either(states[0], states[1])
    return collapse(lo, hi, nan, narrow=a.narrow and b.narrow)


def _either(a: Array, b: Array) -> Array:
    # only where both are NaN only; may where either can be NaN
    return np.where((a == ONLY) & (b == ONLY), ONLY, np.where((a > 0) | (b > 0), MAY, 0)).astype(
        np.uint8
    )


def ulp32(z: Array) -> Array:
    """The fp32 ulp of the binade of each value, at least 2^-149."""
    with np.errstate(invalid="ignore"):
        exponent = (np.abs(z).view(np.int64) >> 52) - (1023 + 23)
    return np.ldexp(1.0, np.maximum(exponent, -149).astype(np.int32))


def budget(
    lo: Array, hi: Array, nan: Array | None, ulps: Any, free: Freedom, exact: Array | None
) -> Interval:
    """A function known within `ulps` fp32 ulps: its true ends widened; `exact` elements are what they are.

    The true ends come from float64 functions that are good to a few float64 ulps; 2^-20 of an fp32 ulp more covers that.
    """
    slack = ulps + 2.0**-20
    with np.errstate(invalid="ignore", over="ignore"):
        # an end moved outward from a power of two must not fall into the binade below, whose ulp is half
        low = lo - slack * ulp32(lo * (1.0 + 2.0**-40))
        high = hi + slack * ulp32(hi * (1.0 + 2.0**-40))
        low, high = np.where(np.isfinite(lo), low, lo), np.where(np.isfinite(hi), high, hi)
        # past the fp32 range the last finite step may round to infinity
        big = float.fromhex("0x1.ffffffp127")
        low, high = np.where(low <= -big, -np.inf, low), np.where(high >= big, np.inf, high)
    if exact is not None:
        low, high = np.where(exact, lo, low), np.where(exact, hi, high)
    if not (calm(low) and calm(high)):
        low, high, nan = _settle_specials(low, high, nan, free)
    return Interval(low, high, nan, narrow=False)
