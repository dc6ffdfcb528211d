"""The range reading: every value that a legal execution may produce, as intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from contract import functions, interval, sums
from contract.declare import Contract, Profile
from contract.errors import DeclarationError
from contract.formats import get as get_format
from contract.formats import round_to
from contract.interval import MAY, ONLY, TINY, Array, Freedom, Interval
from contract.readings.base import Change, Reading


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

    def load(self, values: Any, *, narrow: bool) -> Interval:
        x = interval.point(values, narrow=narrow, raw=True)
        # whether a subnormal is there is asked once, not at every step that reads the operand
        x.raw = x.raw and bool(((x.lo != 0) & (np.abs(x.lo) < TINY)).any())
        return x

    def const(self, value: float) -> Interval:
        rounded = float(np.float32(value))
        lo = np.asarray(min(value, rounded))
        hi = lo if rounded == value else np.asarray(max(value, rounded))
        return Interval(lo, hi, narrow=rounded == value)

    def add(self, a: Interval, b: Interval) -> Interval:
        return interval.add(a, b, self.free)

    def mul(self, a: Interval, b: Interval) -> Interval:
        return interval.mul(a, b, self.free)

    def div(self, a: Interval, b: Interval) -> Interval:
        return interval.div(a, b, self.free)

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
        return interval.maximum(a, b) if largest else interval.minimum(a, b)

    def _reduce_extreme(self, a: Interval, axis: int, *, largest: bool) -> Interval:
        f = np.max if largest else np.min
        lo = f(a.lo, axis=axis, keepdims=True)
        hi = lo if a.same else f(a.hi, axis=axis, keepdims=True)
        if (lo == 0).any() or (hi == 0).any():
            # of -0 and +0 either may come out
            lo, hi = np.where(lo == 0, -0.0, lo), np.where(hi == 0, 0.0, hi)
        nan = None if a.nan is None else a.nan.max(axis=axis, keepdims=True)
        return Interval(lo, hi, nan, narrow=a.narrow)

    def _sum(self, a: Interval, axis: int, depth: int | None) -> Interval:
        return sums.sum_range(a, axis, depth, self.free)

    def _variance(self, x: Interval, mean: Interval, axis: int, depth: int | None) -> Interval:
        # an exact mean leaves exact deviations, which the steps see and the closed form does not
        exact = bool((mean.lo == mean.hi).all())
        closed = None if exact else sums.variance_range(x, mean, axis, depth, self.free)
        if closed is not None:
            return closed
        deviation = self.add(x, self.neg(mean))
        total = self._sum(self._square(deviation), axis, depth)
        n = float(x.shape[axis])
        return interval.union(
            self.div(total, self.const(n)),
            self.mul(total, self.div(self.const(1.0), self.const(n))),
        )

    def _welford(self, x: Interval, axis: int, depth: int | None) -> tuple[Interval, Interval]:
        if not x.same:
            raise DeclarationError(
                f"contract {self.contract.name}: welford of a computed value; it is proven for operands only"
            )
        return sums.welford_range(x, axis, depth, self.free)

    def _function(self, name: str, a: Interval, ulps: Any) -> Interval:
        f = functions.get(name)
        a = interval.flushed(a, self.free)
        first, last = (a.lo, a.hi) if f.sign > 0 else (a.hi, a.lo)
        with np.errstate(all="ignore"):
            lo = f.value(first)
            hi = lo if a.same else f.value(last)
        nan = a.nan
        if f.domain > -np.inf:
            below = a.lo < f.domain
            if below.any():
                state = np.where(a.hi < f.domain, ONLY, np.where(below, MAY, 0)).astype(np.uint8)
                nan = state if nan is None else np.maximum(nan, state)
                edge = f.value(np.asarray(f.domain))
                lo, hi = (
                    np.where(np.isnan(lo), 1.0 if f.sign < 0 else edge, lo),
                    np.where(np.isnan(hi), edge, hi),
                )
                lo = np.where(state == ONLY, 1.0, lo)
                hi = np.where(state == ONLY, 1.0, np.maximum(lo, hi))
        k = ulps(np.maximum(np.abs(a.lo), np.abs(a.hi))) if callable(ulps) else ulps
        exact = f.exact(a.lo)
        if not a.same:
            # a declared exact point holds for an argument that is that point, not for a range that ends there
            exact = exact & (a.lo == a.hi)
        return interval.budget(lo, hi, nan, k, self.free, exact if exact.any() else None)

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
        with np.errstate(invalid="ignore", over="ignore"):
            lo = round_to(a.lo, f, mode, overflow, infinity)  # type: ignore[arg-type]
            hi = lo if a.same else round_to(a.hi, f, mode, overflow, infinity)  # type: ignore[arg-type]
        nan = a.nan
        if f.kind == "float" and (np.isnan(lo).any() or np.isnan(hi).any()):
            bad_lo, bad_hi = np.isnan(lo), np.isnan(hi)
            state = np.where(bad_lo & bad_hi, ONLY, np.where(bad_lo | bad_hi, MAY, 0)).astype(
                np.uint8
            )
            nan = state if nan is None else np.maximum(nan, state)
            # what stays finite of a range that crosses the largest value ends at that value
            lo = np.where(bad_lo, np.where(bad_hi, 1.0, -f.max), lo)
            hi = np.where(bad_hi, np.where(state == ONLY, 1.0, f.max), hi)
        if (
            self.free.ftz
            and not a.raw
            and f.emin >= -126
            and f.kind == "float"
            and f.name in ("bf16", "fp32", "tf32")
        ):
            lo, hi = _flush_results(lo, hi)
        return interval.collapse(lo, hi, nan, narrow=f.precision <= 24 and f.emin >= -126)

    def _less(self, a: Interval, b: Interval) -> tuple[Array, Array]:
        sure = a.hi < b.lo
        never = a.lo >= b.hi
        return sure, ~sure & ~never

    def _where(self, condition: tuple[Array, Array], a: Interval, b: Interval) -> Interval:
        return interval.where(condition[0], condition[1], a, b)

    def _union(self, a: Interval, b: Interval) -> Interval:
        return interval.union(a, b)

    def _fma(self, a: Interval, b: Interval, c: Interval, fused: str) -> Interval:
        from contract.fused import fused_multiply_add

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
        return interval.collapse(lo, hi, nan, narrow=all(p.narrow for p in parts))


def _flush_results(lo: Array, hi: Array) -> tuple[Array, Array]:
    down = (lo > 0) & (lo < TINY)
    up = (hi < 0) & (hi > -TINY)
    if down.any():
        lo = np.where(down, 0.0, lo)
    if up.any():
        hi = np.where(up, -0.0, hi)
    return lo, hi
