"""The elementary functions of references: float64 form, direction, exact points, and the 200-bit form of the audit.

Errors of the float64 forms (against 200-bit values on 10^5 points): np.exp 0.7 ulp, np.tanh 1.2 ulp, np.sqrt 0.5 ulp,
1 / np.sqrt 1.1 ulp, erf below 2^8 ulp: all below 2^-20 of an fp32 ulp, which contract.interval.budget adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.endpoints import MAY, MOST, ONLY, Array, Interval, lower, upper
from contract.errors import DeclarationError


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
            first = self._finite(np.where(below, -0.0, a.lo))
            last = self._finite(np.where(only, -0.0, a.hi))
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
        if np.isposinf(value).any():
            value = np.where(np.isposinf(value) & np.isfinite(x) & (x != 0), MOST, value)
        return value


def _zero(x: Array) -> Array:
    return np.asarray(x == 0)


def _infinite_or_zero(x: Array) -> Array:
    return np.asarray((x == 0) | np.isinf(x))


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(x))


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
    "exp": Function(np.exp, 1, _infinite_or_zero, lambda mp, x: mp.exp(x), nonnegative=True),
    "tanh": Function(np.tanh, 1, _zero, lambda mp, x: mp.tanh(x)),
    "erf": Function(erf, 1, _zero, lambda mp, x: mp.erf(x)),
    "sqrt": Function(np.sqrt, 1, _infinite_or_zero, lambda mp, x: mp.sqrt(x), 0.0, True),
    "rsqrt": Function(_rsqrt, -1, _infinite_or_zero, lambda mp, x: 1 / mp.sqrt(x), 0.0, True),
}


def get(name: str) -> Function:
    """The function of that name, or a DeclarationError that lists them."""
    if name not in FUNCTIONS:
        raise DeclarationError(f"no function {name!r}; functions are {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]
