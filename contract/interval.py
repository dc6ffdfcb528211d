"""Arithmetic of the range reading: the hull of one operation over its operands' intervals.

Each function computes the real-valued hull from the corners of the box, with what its inside adds (0 * inf, inf - inf,
a divisor that crosses zero), and then lets the step be an fp32 one or a wider one (`contract.endpoints.settle`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from contract.endpoints import (
    LEAST,
    MAY,
    MOST,
    NUDGE,
    ONLY,
    TINY,
    WIDE_BITS,
    Array,
    Freedom,
    Interval,
    Span,
    calm,
    calm_span,
    collapse,
    flushed,
    join_nan,
    lower,
    magnitudes,
    point,
    settle,
    span_of,
    tamed,
    to_f32,
    ulp32,
    upper,
)

__all__ = [
    "MAY",
    "ONLY",
    "TINY",
    "Array",
    "Freedom",
    "Interval",
    "absolute",
    "add",
    "div",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "point",
    "square",
    "to_f32",
    "ulp32",
    "union",
    "where",
]

Corners = list[tuple[Array, Array, Array]]


def nan_of(*operands: Interval) -> Array | None:
    """NaN state that a step has from its operands."""
    if all(x.nan is None for x in operands):
        return None
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    return join_nan(*(None if x.nan is None else np.broadcast_to(x.nan, shape) for x in operands))


def _corners(a: Interval, b: Interval, f: Callable[[Array, Array], Array]) -> Corners:
    xs = (a.lo,) if a.same else (a.lo, a.hi)
    ys = (b.lo,) if b.same else (b.lo, b.hi)
    return [(x, y, np.asarray(f(x, y))) for x in xs for y in ys]


def _hull(corners: Corners, quiet: bool = False) -> tuple[Array, Array]:
    lo = hi = corners[0][2]
    if quiet:
        # no zero, so no order of zeros
        for index, (_, _, value) in enumerate(corners[1:]):
            reuse = (lo, hi) if index else (None, None)
            lo, hi = np.minimum(lo, value, out=reuse[0]), np.maximum(hi, value, out=reuse[1])
        return lo, hi
    for _, _, value in corners[1:]:
        lo, hi = lower(lo, value), upper(hi, value)
    return lo, hi


def _one_value(x: Interval) -> Array:
    return np.asarray((x.lo == x.hi) & (np.signbit(x.lo) == np.signbit(x.hi)))


def _is_infinite(x: Interval) -> Array:
    return np.asarray((x.lo == x.hi) & np.isinf(x.lo))


def _holds_zero(x: Interval) -> Array:
    return np.asarray((x.lo <= 0) & (x.hi >= 0))


def _holds_infinity(x: Interval) -> Array:
    return np.asarray((x.hi == np.inf) | (x.lo == -np.inf))


def _has_infinity(x: Interval) -> bool:
    # min and max hand a NaN on, which is no infinity but must not hide one
    return bool(x.lo.size) and not (x.lo.min() > -np.inf and x.hi.max() < np.inf)


def _with_clash(
    lo: Array, hi: Array, nan: Array | None, clash: Array
) -> tuple[Array, Array, Array | None]:
    """NaN may where the box holds a clash; only where every corner is one."""
    if not clash.any():
        return lo, hi, nan
    nothing = np.isnan(lo)
    state = np.where(clash, np.where(nothing, ONLY, MAY), 0).astype(np.uint8)
    if nan is not None:
        state = np.maximum(*np.broadcast_arrays(nan, state))
    return np.where(nothing, 1.0, lo), np.where(nothing, 1.0, hi), state


def _beyond_float64(lo: Array, hi: Array, corners: Corners, divide: bool) -> tuple[Array, Array]:
    """Ends that float64 rounded to infinity or to zero: the wide value is neither."""
    for x, y, p in corners:
        small = (p == 0) & (x != 0) & (np.isfinite(y) if divide else y != 0)
        large = np.isinf(p) & np.isfinite(x) & ((y != 0) if divide else np.isfinite(y))
        if small.any():
            minus = np.signbit(p)
            lo = np.where(small & minus & (lo == 0), -LEAST, lo)
            hi = np.where(small & ~minus & (hi == 0), LEAST, hi)
        if large.any():
            lo = np.where(large & (p > 0), np.minimum(lo, MOST), lo)
            hi = np.where(large & (p < 0), np.maximum(hi, -MOST), hi)
    return lo, hi


def add(a: Interval, b: Interval, free: Freedom) -> Interval:
    """a + b; inf - inf anywhere in the box: NaN may."""
    a, b = flushed(a, free), flushed(b, free)
    with np.errstate(invalid="ignore", over="ignore"):
        lo = np.asarray(a.lo + b.lo)
        hi = lo if a.same and b.same else np.asarray(a.hi + b.hi)
        exact = sum_exact(a.lo, b.lo, lo)
        if hi is not lo:
            exact = exact & sum_exact(a.hi, b.hi, hi)
    nan = nan_of(a, b)
    span = span_of(lo, hi)
    if not span:
        lo, hi, nan = sum_specials(lo, hi, nan, a, b)
    narrow, whole = a.narrow and b.narrow, True if exact.all() else exact
    return settle(lo, hi, nan, free, whole, rounds_as_exact=narrow, span=span)


def sum_specials(
    lo: Array, hi: Array, nan: Array | None, a: Interval, b: Interval
) -> tuple[Array, Array, Array | None]:
    """Ends and NaN state of a + b where infinities meet, or float64 overflows."""
    if not (np.isinf(lo).any() or np.isinf(hi).any() or np.isnan(lo).any() or np.isnan(hi).any()):
        return lo, hi, nan
    clash = (np.isposinf(a.hi) & np.isneginf(b.lo)) | (np.isneginf(a.lo) & np.isposinf(b.hi))
    if clash.any():
        # an end is NaN where one operand is an infinity for certain: all that is finite beside it gives that one
        lo, hi = np.where(np.isnan(lo), hi, lo), np.where(np.isnan(hi), lo, hi)
        lo, hi, nan = _with_clash(lo, hi, nan, clash)
    lo = np.where(np.isposinf(lo) & (a.lo < np.inf) & (b.lo < np.inf), MOST, lo)
    hi = np.where(np.isneginf(hi) & (a.hi > -np.inf) & (b.hi > -np.inf), -MOST, hi)
    return lo, hi, nan


def sum_exact(a: Array, b: Array, s: Array) -> Array:
    """Whether s is the sum of a and b, element by element; infinities and NaN are."""
    # TwoSum's residue (a - (s - t)) + (b - t) with t = s - a is zero
    t = np.asarray(s - a)
    left = np.asarray(s - t)
    np.subtract(a, left, out=left)
    left += np.subtract(b, t, out=t)
    exact = np.asarray(left == 0)
    # an infinity or a NaN leaves a NaN
    return exact if exact.all() else np.asarray(exact | ~np.isfinite(s))


def neg(a: Interval) -> Interval:
    """-a, exact."""
    lo = np.asarray(-a.hi)
    hi = lo if a.same else np.asarray(-a.lo)
    return tamed(Interval(lo, hi, a.nan, narrow=a.narrow, raw=a.raw), a.span, a.bits)


def absolute(a: Interval) -> Interval:
    """|a|, exact."""
    if a.same:
        lo = np.abs(a.lo)
        return tamed(Interval(lo, lo, a.nan, narrow=a.narrow, raw=a.raw), a.span, a.bits)
    low, high = np.abs(a.lo), np.abs(a.hi)
    lo = np.where(_holds_zero(a), 0.0, np.minimum(low, high))
    return Interval(lo, np.maximum(low, high), a.nan, narrow=a.narrow, raw=a.raw)


def product_hull(a: Interval, b: Interval) -> tuple[Array, Array, Array | None, Span | None]:
    """Float64 hull and NaN state of a b, before it is settled, and bounds of its magnitude where all of it is calm."""
    with np.errstate(invalid="ignore", over="ignore"):
        corners = _corners(a, b, np.multiply)
    nan = nan_of(a, b)
    span = _corner_span(a, b, corners)
    if span is not None:
        return *_hull(corners, quiet=True), nan, span
    lo, hi = _hull(corners)
    if _has_infinity(a) or _has_infinity(b):
        clash = (_holds_zero(a) & _holds_infinity(b)) | (_holds_infinity(a) & _holds_zero(b))
    else:
        clash = np.zeros((), bool)
    if clash.any():
        # beside an end that is infinite lie finite values, and 0 times those is a zero
        uncertain_a, uncertain_b = ~_is_infinite(a), ~_is_infinite(b)
        filled = []
        for x, y, p in corners:
            zero = np.isnan(p) & np.where(np.isinf(x), uncertain_a, uncertain_b)
            sign = np.where(np.signbit(x) ^ np.signbit(y), -0.0, 0.0)
            filled.append((x, y, np.where(zero, sign, p)))
        corners = filled
        lo, hi, nan = _with_clash(*_hull(corners), nan, clash)
    if not (a.narrow and b.narrow):
        lo, hi = _beyond_float64(lo, hi, corners, False)
    return lo, hi, nan, None


def product_span(a: Span, b: Span) -> Span:
    """Bounds of a product's magnitudes."""
    return a[0] * b[0], a[1] * b[1]


def quotient_span(a: Span, b: Span) -> Span:
    """Bounds of a quotient's magnitudes."""
    return a[0] / b[1], a[1] / b[0]


def _corner_span(a: Interval, b: Interval, corners: Corners) -> Span | None:
    """Bounds of the magnitudes of a product's corners, from those of its operands where they suffice."""
    if a.span is not None and b.span is not None:
        known = calm_span(product_span(a.span, b.span))
        if known is not None:
            return known
    spans = [magnitudes(value) for _, _, value in corners]
    found = [span for span in spans if span is not None]
    if len(found) < len(spans):
        return None
    return min(low for low, _ in found), max(high for _, high in found)


def mul(a: Interval, b: Interval, free: Freedom) -> Interval:
    """a b over the corners; 0 * inf anywhere in the box: NaN may."""
    a, b = flushed(a, free), flushed(b, free)
    exact: bool | Array = a.narrow and b.narrow
    if (
        not exact
        and a.span
        and b.span
        and 8 * min(a.lo.size, b.lo.size) <= max(a.lo.size, b.lo.size)
    ):
        # what every element of a row is multiplied by is moved outward once, instead of every product
        a, b = (_outward_twice(x) if x.lo.size < y.lo.size else x for x, y in ((a, b), (b, a)))
        exact = True
    lo, hi, nan, span = product_hull(a, b)
    if span and a.bits + b.bits <= 24:
        # the products are fp32 values: nothing to round, nothing to keep wider
        return tamed(Interval(lo, hi, nan, narrow=True), span, a.bits + b.bits)
    if not exact and not span:
        exact = (lo == 0) & (hi == 0)
    return settle(lo, hi, nan, free, exact, span=span)


def _outward_twice(x: Interval) -> Interval:
    """Ends moved outward so far that the float64 rounding of a product with them stays inside: twice 2^-52."""
    lo = x.lo - np.abs(x.lo) * (2 * NUDGE)
    hi = x.hi + np.abs(x.hi) * (2 * NUDGE)
    return tamed(Interval(lo, hi, x.nan), x.span, WIDE_BITS)


def square(a: Interval, free: Freedom) -> Interval:
    """a^2: never negative, though the product of two ranges that straddle zero would be."""
    a = flushed(a, free)
    # one value is squared with its sign
    m = a if a.same and a.narrow else absolute(a)
    with np.errstate(over="ignore"):
        lo = np.asarray(m.lo * m.lo)
        hi = lo if m.same else np.asarray(m.hi * m.hi)
    if m.narrow:
        span = None if m.span is None else calm_span((m.span[0] ** 2, m.span[1] ** 2))
        if span and 2 * m.bits <= 24:
            return tamed(Interval(lo, hi, m.nan, narrow=True), span, 2 * m.bits)
        return settle(lo, hi, m.nan, free, True, span=span)
    if not (calm(lo) and (hi is lo or calm(hi))):
        lo = np.where(np.isposinf(lo) & (m.lo < np.inf), MOST, lo)
        hi = np.where((hi == 0) & (m.hi > 0), LEAST, hi)
    return settle(lo, hi, m.nan, free, (lo == 0) & (hi == 0))


def div(a: Interval, b: Interval, free: Freedom) -> Interval:
    """a / b over the corners; a divisor range that crosses zero: everything."""
    a, b = flushed(a, free), flushed(b, free)
    narrow = a.narrow and b.narrow
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        corners = _corners(a, b, np.divide)
        quiet = all(calm(value) for _, _, value in corners)
        lo, hi = _hull(corners, quiet)
        exact: bool | Array = False
        if narrow:
            # element by element: one that is uncertain does not widen the others
            whole = np.asarray(True) if b.same else _one_value(b)
            for x, y, q in corners if whole.any() else ():
                whole = whole & ((q * y == x) & (to_f32(q) == q) | ~np.isfinite(q))
            exact = True if whole.all() else whole
    nan = nan_of(a, b)
    crosses = np.signbit(b.lo) & ~np.signbit(b.hi)
    if not quiet or crosses.any():
        quiet = False
        clash = (_holds_zero(a) & _holds_zero(b)) | (_holds_infinity(a) & _holds_infinity(b))
        if clash.any():
            corners = _quotients_beside_infinity(a, b, corners)
            lo, hi, nan = _with_clash(*_hull(corners), nan, clash)
        if not narrow:
            lo, hi = _beyond_float64(lo, hi, corners, True)
        if crosses.any():
            lo, hi = np.where(crosses, -np.inf, lo), np.where(crosses, np.inf, hi)
    return settle(lo, hi, nan, free, exact, rounds_as_exact=narrow)


def _quotients_beside_infinity(a: Interval, b: Interval, corners: Corners) -> Corners:
    # inf / inf at an end that is not certain: finite / inf is a zero, inf / finite an infinity
    uncertain_a, uncertain_b = ~_is_infinite(a), ~_is_infinite(b)
    filled = []
    for x, y, q in corners:
        sign = np.where(np.signbit(x) ^ np.signbit(y), -1.0, 1.0)
        beside = np.isnan(q) & np.isinf(x)
        value = np.where(uncertain_a, sign * 0.0, np.where(uncertain_b, sign * np.inf, np.nan))
        filled.append((x, y, np.where(beside, value, q)))
    return filled


def maximum(a: Interval, b: Interval, free: Freedom | None = None) -> Interval:
    """max(a, b); of -0 and +0 either may come out."""
    return _pick(flushed(a, free), flushed(b, free), upper)


def minimum(a: Interval, b: Interval, free: Freedom | None = None) -> Interval:
    """min(a, b); of -0 and +0 either may come out."""
    return _pick(flushed(a, free), flushed(b, free), lower)


def _pick(a: Interval, b: Interval, order: Callable[[Array, Array], Array]) -> Interval:
    lo, hi = order(a.lo, b.lo), order(a.hi, b.hi)
    zero = _holds_zero(a) & _holds_zero(b)
    if zero.any():
        # both may be zero, one of each sign: an end that is zero may have the sign that the order would not pick
        differ = zero & (np.signbit(a.lo) | np.signbit(b.lo))
        differ &= ~(np.signbit(a.hi) & np.signbit(b.hi))
        lo = np.where(differ & (lo == 0), -0.0, lo)
        hi = np.where(differ & (hi == 0), 0.0, hi)
    return collapse(lo, hi, nan_of(a, b), narrow=a.narrow and b.narrow, raw=a.raw or b.raw)


def where(known: Array, maybe: Array | None, a: Interval, b: Interval) -> Interval:
    """a where known, b where not, the join of both where `maybe` (an undecided comparison)."""
    lo, hi = np.where(known, a.lo, b.lo), np.where(known, a.hi, b.hi)
    nan: Array | None = None
    if a.nan is not None or b.nan is not None:
        states = (np.uint8(0) if x.nan is None else x.nan for x in (a, b))
        nan = np.broadcast_to(np.where(known, *states), lo.shape).astype(np.uint8)
    if maybe is not None and maybe.any():
        both = union(a, b)
        lo, hi = np.where(maybe, both.lo, lo), np.where(maybe, both.hi, hi)
        if nan is not None:
            nan = np.where(maybe, np.uint8(0) if both.nan is None else both.nan, nan)
    if nan is not None and not nan.any():
        nan = None
    return collapse(lo, hi, nan, narrow=a.narrow and b.narrow, raw=a.raw or b.raw)


def union(a: Interval, b: Interval) -> Interval:
    """The join of two candidates."""
    lo, hi = lower(a.lo, b.lo), upper(a.hi, b.hi)
    nan = None
    if a.nan is not None or b.nan is not None:
        states = [
            np.zeros(lo.shape, np.uint8) if x.nan is None else np.broadcast_to(x.nan, lo.shape)
            for x in (a, b)
        ]
        # the ends of an element that is NaN only say nothing
        for state, other in ((states[0], b), (states[1], a)):
            lo, hi = np.where(state == ONLY, other.lo, lo), np.where(state == ONLY, other.hi, hi)
        # only where both are NaN only; may where either can be NaN
        nan = np.where((states[0] > 0) | (states[1] > 0), MAY, 0)
        nan = np.where((states[0] == ONLY) & (states[1] == ONLY), ONLY, nan).astype(np.uint8)
    return collapse(lo, hi, nan, narrow=a.narrow and b.narrow, raw=a.raw or b.raw)
