"""FixedPoint32: value = code * 2**-frac with a signed 32-bit code.

Codes are int64 arrays, so that products and sums have room: 31 bits times a W4 plane sum of 26
bits needs 57 bits, and float64 has 53.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOWEST = -(2**31)
HIGHEST = 2**31 - 1


def quantize(
    x: ArrayLike, frac: int, overflow: Literal["saturate", "raise"] = "saturate"
) -> NDArray[np.int64]:
    """Codes of x: x * 2**frac rounded once to an integer, ties to even.

    Args:
        x: float64.
        frac: fraction bits; a code is worth 2**-frac.
        overflow: saturate to the ends of int32, also an infinity; or raise OverflowError with the
            first value beyond them.

    Specials: a NaN has no code and raises ValueError with its index; -0 becomes 0.
    """
    if overflow not in ("saturate", "raise"):
        raise ValueError(f"overflow {overflow!r} is not one of saturate, raise")
    values = np.asarray(x, np.float64)
    if np.isnan(values).any():
        index = _first(np.isnan(values))
        raise ValueError(f"NaN at index {index} has no FixedPoint32 code")
    with np.errstate(over="ignore"):
        codes = np.asarray(np.rint(np.ldexp(values, frac)))
    beyond = (codes < LOWEST) | (codes > HIGHEST)
    if overflow == "raise" and beyond.any():
        index = _first(beyond)
        low, high = (float(np.ldexp(end, -frac)) for end in (LOWEST, HIGHEST))
        raise OverflowError(
            f"{float(values[index])!r} at index {index} does not fit FixedPoint32 with "
            f"{frac} fraction bits: {low!r} to {high!r}"
        )
    return np.asarray(np.clip(codes, LOWEST, HIGHEST), np.int64)


def to_float64(codes: ArrayLike, frac: int) -> NDArray[np.float64]:
    """Values of codes, exact; OverflowError for a sum of codes beyond 2**53."""
    c = np.asarray(codes, np.int64)
    beyond = (c > 2**53) | (c < -(2**53))
    if beyond.any():
        index = _first(beyond)
        raise OverflowError(f"code {int(c[index])} at index {index} is not exact in float64")
    return np.asarray(np.ldexp(c.astype(np.float64), -frac))


def _first(where: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
