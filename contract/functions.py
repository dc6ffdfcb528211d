"""The elementary functions of references: float64 form, direction, exact points, and the 200-bit form of the audit.

Errors of the float64 forms (against 200-bit values on 10^5 points): np.exp 0.7 ulp, np.tanh 1.2 ulp, np.sqrt 0.5 ulp,
1 / np.sqrt 1.1 ulp, erf below 2^8 ulp: all below 2^-20 of an fp32 ulp, which `budget` adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.endpoints import (
    MAY,
    MOST,
    ONLY,
    OVERFLOW,
    WIDE_BITS,
    Array,
    Freedom,
    Interval,
    calm,
    lower,
    settle_specials,
    span_of,
    tamed,
    ulp32,
    upper,
)
from contract.errors import DeclarationError

# More than the relative error of the float64 functions.
_FUZZ = float.fromhex("0x1p-50")


@dataclass(frozen=True)
class Function:
    """One function.

    Attributes:
        value: float64 form.
        sign: +1 increasing, -1 decreasing.
        exact: argument -> mask of elements whose value every implementation must give exactly (declared points).
        domain: lowest argument; below it the result is NaN.
        precise: form in mpmath.
        nonnegative: no implementation gives a negative result: exp is a positive significand scaled by a power of two,
            roots are products of positive factors (glibc and SLEEF sources; PTX ISA, ex2, sqrt and rsqrt).
    """

    value: Callable[[Array], Array]
    sign: int
    exact: Callable[[Array], Array]
    precise: Callable[[Any, Any], Any]
    domain: float = -np.inf
    nonnegative: bool = False

    def ends(self, a: Interval) -> tuple[Array, Array, Array | None]:
        """True ends over an interval, and its NaN state with what lies below the domain."""
        with np.errstate(all="ignore"):
            below = a.lo < self.domain
            crosses = (self.domain == 0) & np.signbit(a.lo) & ~np.signbit(a.hi)
            if not (below.any() or crosses.any()):
                lo = self._finite(a.lo)
                hi = lo if a.same else self._finite(a.hi)
                return (lo, hi, a.nan) if self.sign > 0 else (hi, lo, a.nan)
            # The domain starts at zero, whose sign counts: 1 / sqrt(-0) is -inf.
            only = a.hi < self.domain
            edge = -0.0 if self.domain == 0 else self.domain
            first = self._finite(np.where(below, edge, a.lo))
            last = self._finite(np.where(only, edge, a.hi))
            lo, hi = lower(first, last), upper(first, last)
            zero = np.asarray(self.value(np.asarray(0.0)))
            lo = np.where(crosses, lower(lo, zero), lo)
            hi = np.where(crosses, upper(hi, zero), hi)
        state = np.where(only, ONLY, np.where(below, MAY, 0)).astype(np.uint8)
        nan = state if a.nan is None else np.maximum(a.nan, state)
        return np.where(only, 1.0, lo), np.where(only, 1.0, hi), nan if nan.any() else None

    def _finite(self, x: Array) -> Array:
        # a finite argument whose value is beyond float64 (exp 800) does not give infinity
        value = np.asarray(self.value(x))
        if value.size and not value.max() < np.inf:
            value = np.where(np.isposinf(value) & np.isfinite(x) & (x != 0), MOST, value)
        return value


@dataclass(frozen=True)
class Wave(Function):
    """cos or sin: 1 at start + 2 k pi, -1 half a period later; NaN at the infinities.

    Which multiple of pi an end lies beyond is decided in float64. Up to 2^26 that is wrong by less than 2^-26 of an
    argument, where an extremum is flat to 2^-53; a range beyond it is taken for a whole period.
    """

    start: float = 0.0

    def ends(self, a: Interval) -> tuple[Array, Array, Array | None]:
        """True ends over an interval: of its two ends, and of the extrema between them."""
        with np.errstate(invalid="ignore"):
            first = np.asarray(self.value(a.lo))
            last = first if a.same else np.asarray(self.value(a.hi))
            lo, hi = lower(first, last), upper(first, last)
            endless = np.isinf(a.lo) | np.isinf(a.hi)
            if not a.same:
                below = np.ceil((a.lo - self.start) / np.pi)
                above = np.floor((a.hi - self.start) / np.pi)
                size = np.maximum(np.abs(a.lo), np.abs(a.hi))
                whole = endless | ((size > 2.0**26) & (a.lo < a.hi))
                hi = np.where(whole | (2 * np.floor(above / 2) >= below), 1.0, hi)
                lo = np.where(whole | (2 * np.floor((above - 1) / 2) + 1 >= below), -1.0, lo)
        if not endless.any():
            return lo, hi, a.nan
        only = endless & (a.lo == a.hi)
        state = np.where(only, ONLY, np.where(endless, MAY, 0)).astype(np.uint8)
        nan = state if a.nan is None else np.maximum(a.nan, state)
        return np.where(only, 1.0, lo), np.where(only, 1.0, hi), nan


def _zero(x: Array) -> Array:
    return np.asarray(x == 0)


def _infinite_or_zero(x: Array) -> Array:
    return np.asarray((x == 0) | np.isinf(x))


def _log_exact(x: Array) -> Array:
    return np.asarray((x == 1) | (x == 0) | np.isinf(x))


def _log1p_exact(x: Array) -> Array:
    return np.asarray((x == 0) | (x == -1) | np.isinf(x))


def _below_one(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    # A finite argument's value lies below 1, in a binade whose ulp is half of 1's, though float64 rounds it up. This
    # end is 2^-45 off, which is below 2^-20 of that ulp.
    def value(x: Array) -> Array:
        y = np.asarray(f(x))
        inside = np.clip(y, -_BELOW_ONE, _BELOW_ONE)
        endless = np.isinf(x)
        return np.where(endless, y, inside) if endless.any() else inside

    return value


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(x))


_BELOW_ONE = 1 - float.fromhex("0x1p-45")
_TWO_OVER_ROOT_PI = float.fromhex("0x1.20dd750429b6dp+0")
# erf is 1 within 2^-54 from here
_ERF_ONE = 5.95


def erf(x: Array) -> Array:
    """erf(x) = 2 / sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (1 * 3 * ... * (2n+1)); all terms of one sign.

    Source: Abramowitz and Stegun, 7.1.6. Relative error below 2^-45 (the rounding of x^2 times 36).
    """
    x = np.asarray(x, np.float64)
    result = np.sign(x)
    inside = np.abs(x) < _ERF_ONE
    y = x[inside]
    s = y * y
    term, total = y.copy(), y.copy()
    last = float(s.max()) if s.size else 0.0
    for n in range(1, 40 + int(6 * last)):
        term *= 2.0 * s / (2 * n + 1)
        total += term
        if n > 2 * last and not (np.abs(term) > 2.0**-55 * np.abs(total)).any():
            break
    result[inside] = _TWO_OVER_ROOT_PI * np.exp(-s) * total
    result[np.isnan(x)] = np.nan
    return np.copysign(result, np.where(np.isnan(x), 1.0, x))


FUNCTIONS: dict[str, Function] = {
    "cos": Wave(np.cos, 1, _zero, lambda mp, x: mp.cos(x)),
    "sin": Wave(np.sin, 1, _zero, lambda mp, x: mp.sin(x), start=np.pi / 2),
    "log": Function(np.log, 1, _log_exact, lambda mp, x: mp.log(x), 0.0),
    "log1p": Function(np.log1p, 1, _log1p_exact, lambda mp, x: mp.log(1 + x), -1.0),
    "exp": Function(np.exp, 1, _infinite_or_zero, lambda mp, x: mp.exp(x), nonnegative=True),
    "tanh": Function(_below_one(np.tanh), 1, _zero, lambda mp, x: mp.tanh(x)),
    "erf": Function(_below_one(erf), 1, _zero, lambda mp, x: mp.erf(x)),
    "sqrt": Function(np.sqrt, 1, _infinite_or_zero, lambda mp, x: mp.sqrt(x), 0.0, True),
    "rsqrt": Function(_rsqrt, -1, _infinite_or_zero, lambda mp, x: 1 / mp.sqrt(x), 0.0, True),
}


def get(name: str) -> Function:
    """The function of that name, or a DeclarationError that lists them."""
    if name not in FUNCTIONS:
        raise DeclarationError(f"no function {name!r}; functions are {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]


_EXPONENT = np.int64(0x7FF << 52)


def _equal(lo: Array, hi: Array) -> bool:
    # zeros of different sign are two values
    return lo is hi or (np.array_equal(lo, hi) and np.array_equal(np.signbit(lo), np.signbit(hi)))


def budget(
    lo: Array,
    hi: Array,
    nan: Array | None,
    ulps: Any,
    free: Freedom,
    exact: Array | None,
    *,
    nonnegative: bool = False,
) -> Interval:
    """A function known within `ulps` fp32 ulps: its true ends widened; `exact` elements are what they are.

    The true ends come from float64 functions that are good to a few float64 ulps; 2^-20 of an fp32 ulp more covers that.
    `nonnegative`: no ulps lead from a value that is not negative below zero.
    """
    if exact is not None and nan is None and exact.all() and _equal(lo, hi):
        # the values at exact points are small integers or infinite: fp32 values, which later steps take as exact
        return tamed(Interval(lo, lo, narrow=True), span_of(lo, lo), 24)
    slack = ulps + 2.0**-20
    if lo is hi and nan is None and calm(lo):
        # one value each, far from zero and overflow: the ulp of its binade, or of the next where it may lie there
        unit = (np.abs(lo) * (1.0 + _FUZZ)).view(np.int64) & _EXPONENT
        unit = unit.view(np.float64) * (slack * 2.0**-23)
        low, high = lo - unit, lo + unit
        if exact is not None:
            low, high = np.where(exact, lo, low), np.where(exact, lo, high)
        span = span_of(low, high)
        if span is not None:
            return tamed(Interval(low, high, narrow=False), span, WIDE_BITS)
    with np.errstate(invalid="ignore", over="ignore"):
        # the ends may be on the wrong side of a power of two by float64's errors
        u_lo, u_hi = ulp32(lo * (1.0 + _FUZZ)), ulp32(hi * (1.0 + _FUZZ))
        low, high = lo - slack * u_lo, hi + slack * u_hi
        # Where the true value may lie past the next power of two, its ulps are twice those of the end before it.
        step_lo, step_hi = 2.0**24 * u_lo, -(2.0**24) * u_hi
        low = np.where(
            (lo > 0) & (step_lo <= hi * (1.0 + _FUZZ)),
            np.minimum(low, step_lo - 2 * slack * u_lo),
            low,
        )
        high = np.where(
            (hi < 0) & (step_hi >= lo * (1.0 + _FUZZ)),
            np.maximum(high, step_hi + 2 * slack * u_hi),
            high,
        )
        low, high = np.where(np.isfinite(lo), low, lo), np.where(np.isfinite(hi), high, hi)
        # past the fp32 range the last finite step may round to infinity
        low, high = (
            np.where(low <= -OVERFLOW, -np.inf, low),
            np.where(high >= OVERFLOW, np.inf, high),
        )
    if nonnegative:
        low = np.where((low < 0) & (lo >= 0), np.copysign(0.0, lo), low)
    if exact is not None:
        low, high = np.where(exact, lo, low), np.where(exact, hi, high)
    span = span_of(low, high)
    if span is None:
        low, high, nan = settle_specials(low, high, nan, free)
    return tamed(Interval(low, high, nan, narrow=False), span, WIDE_BITS)
