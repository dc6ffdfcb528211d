"""The range reading: every value that a legal execution may produce, as intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from contract import functions, interval, moments, products, sets, sums
from contract.attention import Softmax, softmax_av_range
from contract.case import Case, Kernel
from contract.declare import Contract, Operand, Profile
from contract.deferred import deferred, rounded_near
from contract.endpoints import (
    MAY,
    MOST,
    ONLY,
    TINY,
    WIDE_BITS,
    Array,
    Freedom,
    Interval,
    calm_span,
    collapse,
    flush_ends,
    flushed,
    lower,
    magnitudes,
    point,
    significant_bits,
    span_of,
    tamed,
    to_f32,
    upper,
)
from contract.errors import DeclarationError
from contract.formats import Format, round_normal, round_to
from contract.formats import get as get_format
from contract.fused import fused_multiply_add
from contract.orders import Accumulator
from contract.readings.base import Change, Reading
from contract.readings.structured import whole_numbers


class RangeReading(Reading):
    """Values are `Interval`s; all freedoms on unless the profile keeps subnormals."""

    def __init__(
        self,
        contract: Contract,
        profile: Profile,
        depths: Mapping[str, int] | None = None,
        *,
        free: Freedom | None = None,
        change: Change | None = None,
    ):
        super().__init__(contract, profile, depths)
        self.change = change or Change()
        self.free = free or Freedom(wide=True, ftz=not profile.keeps_subnormals)
        # how a multiply-add that may be fused or not is read
        self.either = "either"

    def load(self, values: Any, *, narrow: bool) -> Interval:
        values = np.asarray(values, np.float64)
        span = magnitudes(values)
        if span is not None:
            return tamed(Interval(values, values, narrow=narrow), span, significant_bits(values))
        x = point(values, narrow=narrow)
        # whether a subnormal is there is asked once, not at every step that reads the operand
        x.raw = _has_subnormals(x.lo)
        return tamed(x, None, significant_bits(x.lo))

    def operand(self, kernel: Kernel, case: Case, operand: Operand) -> Interval:
        if operand.name not in case.ranges:
            case.ranges[operand.name] = super().operand(kernel, case, operand)
        return case.ranges[operand.name]

    def const(self, value: float) -> Interval:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value))
        if rounded == value or np.isnan(value):
            x = point(np.asarray(value), narrow=True)
        else:
            x = Interval(np.asarray(min(value, rounded)), np.asarray(max(value, rounded)))
        x.raw = 0 < abs(value) < TINY
        return tamed(x, span_of(x.lo, x.hi), significant_bits(x.lo) if x.same else WIDE_BITS)

    def add(self, a: Interval, b: Interval) -> Interval:
        step = partial(interval.add, free=self.free)
        return deferred(step, np.add, a, b, exact=interval.sum_exact)

    def mul(self, a: Interval, b: Interval) -> Interval:
        exact = a.narrow and b.narrow and a.bits + b.bits <= 24
        step, bounds = partial(interval.mul, free=self.free), interval.product_span
        if exact:
            return deferred(step, np.multiply, a, b, slack=0.0, bounds=bounds)
        return deferred(step, np.multiply, a, b, factors=True, bounds=bounds)

    def div(self, a: Interval, b: Interval) -> Interval:
        step, bounds = partial(interval.div, free=self.free), interval.quotient_span
        return deferred(step, np.divide, a, b, factors=True, bounds=bounds)

    def neg(self, a: Interval) -> Interval:
        return interval.neg(a)

    def view(self, a: Interval, f: Callable[[Any], Any]) -> Interval:
        return a.map(f)

    def shape_of(self, a: Interval) -> tuple[int, ...]:
        return a.shape

    def _square(self, a: Interval) -> Interval:
        return interval.square(a, self.free)

    def _absolute(self, a: Interval) -> Interval:
        return interval.absolute(a)

    def _extreme(self, a: Interval, b: Interval, *, largest: bool) -> Interval:
        return (interval.maximum if largest else interval.minimum)(a, b, self.free)

    def _reduce_extreme(self, a: Interval, axis: int, *, largest: bool) -> Interval:
        a = flushed(a, self.free)
        f = np.max if largest else np.min
        lo = f(a.lo, axis=axis, keepdims=True)
        hi = lo if a.same else f(a.hi, axis=axis, keepdims=True)
        if (lo == 0).any() or (hi == 0).any():
            # of -0 and +0 either may come out, where both are there
            zero = (a.lo <= 0) & (a.hi >= 0)
            minus = (zero & np.signbit(a.lo)).any(axis=axis, keepdims=True)
            plus = (zero & ~np.signbit(a.hi)).any(axis=axis, keepdims=True)
            lo = np.where(lo == 0, np.where(minus, -0.0, 0.0), lo)
            hi = np.where(hi == 0, np.where(plus, 0.0, -0.0), hi)
        nan = None if a.nan is None else a.nan.max(axis=axis, keepdims=True)
        return collapse(lo, hi, nan, narrow=a.narrow, raw=a.raw)

    def _sum(self, a: Interval, axis: int, depth: int | None) -> Interval:
        return sums.sum_range(a, axis, depth, self.free)

    def _variance(self, x: Interval, mean: Interval, axis: int, depth: int | None) -> Interval:
        def steps() -> Interval:
            deviation = self.add(x, self.neg(mean))
            total = self._sum(self._square(deviation), axis, depth)
            n = float(x.shape[axis])
            return interval.union(
                self.div(total, self.const(n)),
                self.mul(total, self.div(self.const(1.0), self.const(n))),
            )

        closed = sums.variance_range(x, mean, axis, depth, self.free, steps)
        assert closed is not None
        return closed

    def _welford(self, x: Interval, axis: int, depth: int | None) -> tuple[Interval, Interval]:
        if not x.same:
            raise DeclarationError(
                f"contract {self.contract.name}: welford of a computed value; it is proven for operands only"
            )
        return moments.merged_range(x, axis, depth, self.free)

    def _folded(self, x: Interval, mean: Interval, scale: Interval) -> Interval:
        # through the difference, as one scale multiplies both: apart, their ranges would not cancel
        exact = self.mul(self.add(x, self.neg(mean)), scale)
        return moments.folded_range(exact, x, mean, scale, self.free)

    def _function(self, name: str, a: Interval, ulps: Any) -> Interval:
        f = functions.get(name)
        if callable(ulps):
            return self._function_ends(f, ulps, a)
        slack = (ulps + 1) * 2.0**-22
        return deferred(partial(self._function_ends, f, ulps), f.value, a, slack=slack)

    def _function_ends(self, f: functions.Function, ulps: Any, a: Interval) -> Interval:
        a = flushed(a, self.free)
        lo, hi, nan = f.ends(a)
        k = ulps(np.maximum(np.abs(a.lo), np.abs(a.hi))) if callable(ulps) else ulps
        exact = f.exact(a.lo)
        if not a.same:
            # a declared exact point holds for an argument that is that point, not for a range that ends there
            exact = exact & (a.lo == a.hi)
        declared = exact if exact.any() else None
        return functions.budget(lo, hi, nan, k, self.free, declared, nonnegative=f.nonnegative)

    def _round(
        self,
        point: str,
        a: Interval,
        fmt: str | None,
        mode: str,
        overflow: str | None,
        infinity: str | None,
    ) -> Interval:
        if fmt is None or point in self.change.drop:
            return a
        mode = self.change.modes.get(point, mode)
        f = get_format(fmt)

        def ends(x: Interval) -> Interval:
            return self._rounded(x, f, mode, overflow, infinity)

        usual = mode == "nearest_even" and f.kind == "float" and f.emin == -126
        near = rounded_near(a, f, ends) if usual and f.precision <= 24 else None
        return ends(a) if near is None else near

    def _rounded(
        self, a: Interval, f: Format, mode: str, overflow: str | None, infinity: str | None
    ) -> Interval:
        if a.span and mode == "nearest_even" and f.kind == "float" and f.emin == -126:
            # nothing can overflow, vanish or become subnormal
            lo = round_normal(a.lo, f)
            hi = lo if a.same else round_normal(a.hi, f)
            span = (a.span[0] * (1 - 2 * f.u), a.span[1] * (1 + 2 * f.u))
            result = collapse(lo, hi, a.nan, narrow=f.precision <= 24)
            return tamed(result, calm_span(span), f.precision)
        lo, hi, nan = rounded_ends(a, f, mode, overflow, infinity)
        raw = False
        if a.raw or f.emin < -126:
            # a conversion of what no step has flushed, or to a format that goes below fp32's exponents
            raw = _has_subnormals(lo) or _has_subnormals(hi)
        elif self.free.ftz and f.kind == "float" and f.emin == -126:
            lo, hi = flush_ends(lo, hi)
        narrow = f.precision <= 24 and f.emin >= -126
        bits = f.precision if f.kind == "float" else WIDE_BITS
        return tamed(collapse(lo, hi, nan, narrow=narrow, raw=raw), None, bits)

    def _dot(
        self, a: Interval, b: Interval, order: Any, acc: Accumulator, start: Interval | None
    ) -> Interval:
        return products.dot_range(a, b, order, acc, self.free, start)

    def _softmax_av(
        self, s: Interval, v: Interval, mask: Any, spec: Softmax
    ) -> tuple[Interval, Interval]:
        s, v = flushed(s, self.free), flushed(v, self.free)
        return softmax_av_range(s, v, mask, spec, self.free)

    def _known(self, mask: Interval) -> Array:
        return np.asarray(mask.lo != 0)

    def _integers(self, values: Interval) -> Array:
        if not values.same or values.nan is not None:
            raise DeclarationError(
                f"contract {self.contract.name}: r.integers of a value that is not known; read an input operand"
            )
        return np.asarray(whole_numbers(values.lo))

    def _exactly(self, values: Array) -> Interval:
        known = values.astype(np.float64)
        if values.dtype.kind in "iu" and known.size and np.abs(known).max() >= 2.0**53:
            # beside the value where float64 does not hold it
            low, high = np.nextafter(known, -np.inf), np.nextafter(known, np.inf)
            held = known.astype(object) == values.astype(object)
            return Interval(np.where(held, known, low), np.where(held, known, high))
        with np.errstate(over="ignore"):
            return self.load(known, narrow=bool((to_f32(known) == known).all()))

    def _pick_max(self, values: Interval, axis: int, nan: str) -> Interval:
        return sets.pick_max(values, axis, nan)

    def _one_of(self, parts: list[Interval]) -> Interval:
        return sets.one_of(parts)

    def _less(self, a: Interval, b: Interval) -> tuple[Array, Array]:
        a, b = flushed(a, self.free), flushed(b, self.free)
        sure, never = a.hi < b.lo, a.lo >= b.hi
        nan = interval.nan_of(a, b)
        if nan is not None:
            # a comparison with NaN is false
            sure, never = sure & (nan == 0), never | (nan == ONLY)
        return sure, ~sure & ~never

    def _where(self, condition: tuple[Array, Array], a: Interval, b: Interval) -> Interval:
        return interval.where(condition[0], condition[1], a, b)

    def _union(self, a: Interval, b: Interval) -> Interval:
        return interval.union(a, b)

    def _fma(self, a: Interval, b: Interval, c: Interval, fused: str) -> Interval:
        fused = self.either if fused == "either" else fused
        if fused == "yes":
            return fused_multiply_add(a, b, c, self.free)
        separate = self.add(self.mul(a, b), c)
        if fused == "no":
            return separate
        return interval.union(fused_multiply_add(a, b, c, self.free), separate)

    def _concat(self, parts: list[Interval], axis: int) -> Interval:
        lo = np.concatenate([p.lo for p in parts], axis)
        hi = np.concatenate([p.hi for p in parts], axis)
        nan = None
        if any(p.nan is not None for p in parts):
            nan = np.concatenate(
                [np.zeros(p.shape, np.uint8) if p.nan is None else p.nan for p in parts], axis
            )
        narrow, raw = all(p.narrow for p in parts), any(p.raw for p in parts)
        return collapse(lo, hi, nan, narrow=narrow, raw=raw)


def _has_subnormals(values: Array) -> bool:
    return bool(((values != 0) & (np.abs(values) < TINY)).any())


def rounded_ends(
    a: Interval, f: Format, mode: str, overflow: str | None, infinity: str | None
) -> tuple[Array, Array, Array | None]:
    """Both ends rounded once, and the NaN state.

    Rounding grows with its argument but where a policy says otherwise: what is beyond the largest value, infinities
    and, in a scale format, negative values may each become a NaN or the largest value. An end there is joined with
    what lies between it and the other end.
    """

    def rounded(x: Any) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            return round_to(x, f, mode, overflow, infinity)  # type: ignore[arg-type]

    lo = rounded(a.lo)
    hi = lo if a.same else rounded(a.hi)
    usual = np.isfinite(lo).all() and (a.same or np.isfinite(hi).all())
    if usual and np.isfinite(a.lo).all() and (a.same or np.isfinite(a.hi).all()):
        return lo, hi, a.nan
    bad_lo, bad_hi = np.isnan(lo), np.isnan(hi)
    only, may = bad_lo & bad_hi, bad_lo | bad_hi
    if not a.same:
        differ = a.lo != a.hi
        first, last = np.where(bad_lo, hi, lo), np.where(bad_hi, lo, hi)
        lo = np.where(only, np.inf, lower(first, last))
        hi = np.where(only, -np.inf, upper(first, last))
        # the values inside: the largest finite ones of both signs, and the format's own last ones
        inside = np.array((-MOST, MOST, f.lowest, f.max))
        for value, result in zip(inside, rounded(inside), strict=True):
            there = differ & (a.lo <= value) & (a.hi >= value)
            if np.isnan(result):
                may = may | there
                continue
            only = only & ~there
            lo = np.where(there, lower(lo, result), lo)
            hi = np.where(there, upper(hi, result), hi)
    if not may.any():
        return lo, hi, a.nan
    lo, hi = np.where(only, 1.0, lo), np.where(only, 1.0, hi)
    state = np.where(only, ONLY, np.where(may, MAY, 0)).astype(np.uint8)
    return lo, hi, state if a.nan is None else np.maximum(*np.broadcast_arrays(a.nan, state))
