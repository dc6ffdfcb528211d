"""Exactly rounded arithmetic: what float64 can hold is computed there, what it cannot is repaired by the error of a sum.

A value rounded to odd (the last bit set where anything was lost) rounds to any narrower format as the exact one would:
S. Boldo, G. Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd, 2008.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from contract.engines.ptx.formats import LEAST_NORMAL, MODES, clean64
from contract.engines.ptx.opcode import CHUNK, Array, alike
from contract.exactround import round_fraction

TIE = np.int64(1 << 28)
BELOW = np.int64((1 << 29) - 1)
SPLITTER = float(2**27 + 1)
# Between these, no part of an exact product of two float64 values is subnormal or infinite.
SAFE_LOW, SAFE_HIGH = 2.0**-450, 2.0**450


def lost(a: Array, b: Array, total: Array) -> Array:
    """What the float64 sum a + b lost, exactly (Knuth's TwoSum)."""
    back = total - a
    error: Array = (a - (total - back)) + (b - back)
    return error


def to_odd(total: Array, error: Array) -> Array:
    """A float64 sum with a set last bit where something was lost."""
    raw = total.view(np.int64)
    inexact = (error != 0) & ((raw & np.int64(1)) == 0) & np.isfinite(total)
    if not inexact.any():
        return total
    step = np.where((error > 0) == (total > 0), np.int64(1), np.int64(-1))
    odd: Array = np.where(inexact, raw + step, raw)
    return odd.view(np.float64)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd."""
    total = a + b
    return to_odd(total, lost(a, b, total))


class _Work(threading.local):
    """A thread's own arrays: large new ones cost more in page faults than the arithmetic in them."""

    def __init__(self) -> None:
        self.total = np.empty(CHUNK)
        self.addend = np.empty(CHUNK)
        self.low = np.empty(CHUNK, np.int64)
        self.doubtful = np.empty(CHUNK, bool)


_WORK = _Work()


def repaired(total: Array, a: Array, b: Array, stored: int, least: float) -> Array:
    """The float64 sum `total` of a and b, rounded to odd where a second rounding could err: on ties of the narrower format
    of `stored` significand bits, and up to its `least` normal value, where ties lie elsewhere."""
    low, doubtful = (
        total.view(np.int64) & np.int64((1 << (52 - stored)) - 1),
        np.abs(total) <= least,
    )
    doubtful |= low == np.int64(1 << (51 - stored))
    if doubtful.any():
        _repair(total, a, b, doubtful)
    return total


def _repair(total: Array, a: Array, b: Array, doubtful: Array) -> None:
    lanes = np.nonzero(doubtful & (total != 0))
    shape = total.shape
    total[lanes] = odd_sum(np.broadcast_to(a, shape)[lanes], np.broadcast_to(b, shape)[lanes])


def fused32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of fp32 values, rounded once to nearest even.

    The product is exact in float64 (48 bits), the sum is rounded there. A second rounding to fp32 errs only where the sum
    is a tie of fp32, or below its normal range, where ties lie elsewhere: those lanes alone are repaired.
    """
    a, b, c = alike(a, b, c)
    flat = [x.reshape(-1) for x in (a, b, c)]
    rounded = np.empty(flat[0].size, np.float32)
    for start in range(0, rounded.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        _fused_chunk(flat[0][chunk], flat[1][chunk], flat[2][chunk], rounded[chunk])
    return rounded.reshape(a.shape)


def _fused_chunk(a: Array, b: Array, c: Array, rounded: Array) -> None:
    total, addend = _WORK.total[: a.size], _WORK.addend[: a.size]
    low, doubtful = _WORK.low[: a.size], _WORK.doubtful[: a.size]
    np.copyto(total, a)
    np.multiply(total, b, out=total)
    np.copyto(addend, c)
    np.add(total, addend, out=total)
    np.copyto(rounded, total, casting="same_kind")
    np.bitwise_and(total.view(np.int64), BELOW, out=low)
    np.equal(low, TIE, out=doubtful)
    doubtful |= np.abs(rounded) <= LEAST_NORMAL
    if doubtful.any():
        product = a.astype(np.float64) * b
        _repair(total, product, addend, doubtful)
        np.copyto(rounded, total, casting="same_kind")


def directed(nearest: Array, error: Array, mode: str) -> Array:
    """The result to nearest moved to the neighbour that the mode asks for.

    `error` has the sign of the exact value minus the nearest one; NaN or 0 where that is exact.
    """
    down, up = error < 0, error > 0
    if mode == "rz":
        down, up = down & (nearest > 0), up & (nearest < 0)
    elif mode == "rm":
        up = np.zeros_like(up)
    elif mode == "rp":
        down = np.zeros_like(down)
    infinity = nearest.dtype.type(np.inf)
    moved = np.where(down, np.nextafter(nearest, -infinity), nearest)
    return np.where(up, np.nextafter(nearest, infinity), moved)


def sum32(a: Array, b: Array, mode: str) -> Array:
    """a + b of float64 values to fp32 in a directed mode; an exact zero of unlike signs is -0 toward minus infinity."""
    odd = odd_sum(a, b)
    nearest = odd.astype(np.float32)
    moved = directed(nearest, odd - nearest, mode)
    if mode == "rm":
        moved = np.where((odd == 0) & (np.signbit(a) != np.signbit(b)), np.float32(-0.0), moved)
    return moved


def product32(a: Array, b: Array, mode: str) -> Array:
    """a * b of fp32 values in a directed mode."""
    exact = a.astype(np.float64) * b
    nearest = exact.astype(np.float32)
    return directed(nearest, exact - nearest, mode)


def _finite_error(nearest: Array, error: Array, exact: Array) -> Array:
    """The error where the nearest result overflowed, which no subtraction finds."""
    error = np.where(np.isinf(nearest), -np.sign(nearest), error)
    return np.where(exact, 0.0, error)


def quotient32(a: Array, b: Array, mode: str) -> Array:
    """a / b of fp32 values in a directed mode: the remainder of the nearest quotient is exact in float64."""
    nearest = a / b
    left = a.astype(np.float64) - nearest.astype(np.float64) * b
    exact = (b == 0) | np.isinf(a) | np.isinf(b)
    return directed(nearest, _finite_error(nearest, left * np.sign(b), exact), mode)


def root32(a: Array, mode: str) -> Array:
    """The square root of fp32 values in a directed mode."""
    nearest = np.sqrt(a)
    wide = nearest.astype(np.float64)
    return directed(nearest, np.where(np.isinf(a), 0.0, a - wide * wide), mode)


def _split(a: Array) -> tuple[Array, Array]:
    scaled = SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def fused64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of fp64 values, rounded once to nearest even.

    Dekker's product and three exact sums, the inner one rounded to odd (Boldo and Melquiond 2008, figure 6); lanes whose
    parts might overflow or become subnormal are computed as fractions.
    """
    a, b, c = (np.atleast_1d(x) for x in np.broadcast_arrays(a, b, c))
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    below = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    inner = c + below
    inner_lost = lost(c, below, inner)
    total = product + inner
    total_lost = lost(product, inner, total)
    small = to_odd(inner_lost + total_lost, lost(inner_lost, total_lost, inner_lost + total_lost))
    result = total + small
    plain = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    result = np.where(
        plain, np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, product + c), result
    )
    safe = np.ones(a.shape, bool)
    for x in (a, b, c):
        size = np.abs(x)
        safe &= ((size >= SAFE_LOW) | ((size == 0) & (x is c))) & (size <= SAFE_HIGH)
    lanes = np.nonzero(~plain & ~safe)
    if lanes[0].size:
        result[lanes] = lanewise(_fused, "rn", a[lanes], b[lanes], c[lanes])
    return result


def _fused(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return a * b + c


Exact = Callable[..., Fraction]
EXACT64: dict[str, Exact] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": _fused,
}


def lanewise(exact: Exact, mode: str, *sources: Array) -> Array:
    """Finite fp64 values lane by lane through fractions; slow, and only for what float64 cannot do."""
    values = zip(*(x.tolist() for x in sources), strict=True)
    results = [_one(exact(*map(Fraction, lane)), mode) for lane in values]
    return np.array(results, np.float64)


def _one(value: Fraction, mode: str) -> float:
    if value == 0:
        return -0.0 if mode == "rm" else 0.0
    return round_fraction(value, "fp64", MODES[mode])


def directed64(name: str, nearest: Array, mode: str, *sources: Array) -> Array:
    """An fp64 instruction in a directed mode: specials and signed zeros as to nearest, the rest as fractions."""
    sources = tuple(np.atleast_1d(x) for x in np.broadcast_arrays(*sources))
    result: Array = np.array(np.broadcast_to(nearest, sources[0].shape))
    hard = np.logical_and.reduce([np.isfinite(x) for x in sources])
    if name == "div":
        hard &= sources[1] != 0
    if name in ("mul", "div"):
        hard &= sources[0] != 0
    if name == "mul":
        hard &= sources[1] != 0
    if name in ("add", "sub"):
        hard &= (sources[0] != 0) | (sources[1] != 0)
    if name == "fma":
        hard &= (
            (sources[0] * sources[1] != 0)
            | (sources[2] != 0)
            | (sources[0] * sources[1] == 0) & (sources[0] != 0) & (sources[1] != 0)
        )
    lanes = np.nonzero(hard)
    result[lanes] = lanewise(EXACT64[name], mode, *(x[lanes] for x in sources))
    if mode == "rm" and name in ("add", "sub", "fma"):
        result = _negative_zero(name, result, hard, *sources)
    return result


def _negative_zero(name: str, result: Array, hard: Array, *sources: Array) -> Array:
    """0 - 0 toward minus infinity is -0 unless both terms are +0."""
    first = sources[0] * sources[1] if name == "fma" else sources[0]
    second = sources[-1] if name != "sub" else -sources[-1]
    unlike = np.signbit(first) != np.signbit(second)
    return np.where(~hard & (result == 0) & unlike, -0.0, result)


def root64(a: Array, mode: str) -> Array:
    """The square root of fp64 values in a directed mode, its error's sign from fractions."""
    nearest = np.atleast_1d(np.sqrt(a))
    values = np.atleast_1d(a)
    error = np.zeros(nearest.shape)
    lanes = np.nonzero(np.isfinite(values) & (values > 0))
    pairs = zip(values[lanes].tolist(), nearest[lanes].tolist(), strict=True)
    error[lanes] = [_sign(Fraction(x) - Fraction(root) ** 2) for x, root in pairs]
    return directed(nearest, error, mode)


def _sign(x: Fraction) -> float:
    return math.copysign(1.0, x) if x else 0.0


__all__ = [
    "clean64",
    "directed",
    "directed64",
    "fused32",
    "fused64",
    "odd_sum",
    "product32",
    "quotient32",
    "root32",
    "root64",
    "sum32",
]
