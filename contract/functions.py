"""The elementary functions of references: float64 form, direction, exact points, and the 200-bit form of the audit.

Errors of the float64 forms (against 200-bit values on 10^5 points): np.exp 0.7 ulp, np.tanh 1.2 ulp, np.sqrt 0.5 ulp,
1 / np.sqrt 1.1 ulp, erf below 2^7 ulp: all below 2^-20 of an fp32 ulp, which contract.interval.budget adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.errors import DeclarationError
from contract.interval import Array


@dataclass(frozen=True)
class Function:
    """One function.

    Attributes:
        value: float64 form.
        sign: +1 increasing, -1 decreasing.
        exact: argument -> mask of elements whose value every implementation must give exactly (declared points).
        domain: lowest argument; below it the result is NaN.
        precise: form in mpmath.
    """

    value: Callable[[Array], Array]
    sign: int
    exact: Callable[[Array], Array]
    precise: Callable[[Any, Any], Any]
    domain: float = -np.inf


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
    "exp": Function(np.exp, 1, _infinite_or_zero, lambda mp, x: mp.exp(x)),
    "tanh": Function(np.tanh, 1, _zero, lambda mp, x: mp.tanh(x)),
    "erf": Function(erf, 1, _zero, lambda mp, x: mp.erf(x)),
    "sqrt": Function(np.sqrt, 1, _infinite_or_zero, lambda mp, x: mp.sqrt(x), domain=0.0),
    "rsqrt": Function(_rsqrt, -1, _infinite_or_zero, lambda mp, x: 1 / mp.sqrt(x), domain=0.0),
}


def get(name: str) -> Function:
    """The function of that name, or a DeclarationError that lists them."""
    if name not in FUNCTIONS:
        raise DeclarationError(f"no function {name!r}; functions are {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]
