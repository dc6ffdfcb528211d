"""What the operands' significands promise about a product: exact terms, and sums exact in every order.

All terms of a sum multiples of q = 2^j, and sum |terms| <= 2^p q: every partial sum is a multiple of q with p bits, so it
is exact in every order. A term of a matrix product is a multiple of the lowest set bits of its two factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.endpoints import Array, Freedom, Interval
from contract.orders import Accumulator

# Elements of one operand's piece: its temporaries stay at some 32 MB each.
PIECE = 1 << 22
# Terms that decide whether the exactness of a product is worth asking.
HEAD = 64
# The lowest bit of zeros: above every other.
NONE = 1 << 20


def inexact_products(a: Interval, b: Interval, acc: Accumulator) -> Array:
    """1 where a product may need rounding: more bits than the accumulator has, or bits below its smallest value."""
    (bits_a, low_a), (bits_b, low_b) = _bits(a, -1), _bits(b, -2)
    return np.where((bits_a + bits_b > acc.bits) | (low_a + low_b < acc.least), 1.0, 0.0)


def _bits(x: Interval, axis: int) -> tuple[Array, Array]:
    """Most significand bits of any element along the axis, and a lower bound of their lowest set bits' exponent."""
    if not x.same:
        shape = [*x.shape]
        shape[axis] = 1
        return np.full(shape, 99), np.full(shape, -NONE)
    word = np.ascontiguousarray(x.lo).view(np.int64)
    union = np.bitwise_or.reduce(word, axis=axis, keepdims=True) & ((1 << 52) - 1)
    # trailing zeros of the union of all fractions
    lowest = union & -union
    zeros = np.where(union == 0, 52, np.frexp(np.maximum(lowest, 1).astype(np.float64))[1] - 1)
    bits = 53 - zeros
    least = np.full(union.shape, np.inf)
    step = max(1, PIECE // max(1, x.lo.size // max(1, x.shape[axis])))
    for k in range(0, x.shape[axis], step):
        size = np.abs(
            x.lo[(..., slice(k, k + step), slice(None))] if axis == -2 else x.lo[..., k : k + step]
        )
        smallest = np.min(size, axis=axis, keepdims=True, where=size > 0, initial=np.inf)
        least = np.minimum(least, smallest)
    exponent = np.frexp(np.where(np.isfinite(least), least, 1.0))[1] - 1
    return bits, np.where(np.isfinite(least), exponent - (bits - 1), 0)


def lowest_bits(x: Array, axis: int) -> Array:
    """Exponent of the lowest set bit of any non-zero element along the axis (NONE where all are zero)."""
    size = np.ascontiguousarray(np.abs(x))
    word = size.view(np.int64)
    fraction = (word & ((1 << 52) - 1)) | (1 << 52)
    low = np.frexp((fraction & -fraction).astype(np.float64))[1] - 1
    exponent = (word >> 52) - 1023 - 52 + low
    return np.asarray(np.min(exponent, axis=axis, keepdims=True, where=size > 0, initial=NONE))


def exact_sums(
    a: Interval,
    b: Interval,
    start: Interval | None,
    magnitude: Array,
    bits: int,
    acc: Accumulator,
    free: Freedom,
) -> Array:
    """Where every order is exact: one-value terms, multiples of q >= t, A <= 2^bits q; q from the lowest set bits."""
    sure_a = np.asarray(True) if a.same else (a.lo == a.hi).all(-1, keepdims=True)
    sure_b = np.asarray(True) if b.same else (b.lo == b.hi).all(-2, keepdims=True)
    with np.errstate(divide="ignore"):
        need = np.ceil(np.log2(magnitude)) - bits
    floor = acc.normal if free.ftz else acc.least

    def fits(la: Array, lb: Array) -> Array:
        q = (
            la + lb
            if start is None
            else np.minimum(la + lb, lowest_bits(start.lo[..., None], -1)[..., 0])
        )
        return np.asarray((q >= need) & (q >= floor) & sure_a & sure_b)

    ok = fits(lowest_bits(a.lo[..., :HEAD], -1), lowest_bits(b.lo[..., :HEAD, :], -2))
    if start is not None:
        ok &= start.lo == start.hi
    if not ok.any() or a.shape[-1] <= HEAD:
        return ok
    # the head's q may be too large; a piece of b at a time
    lb: Any = None
    for k in range(0, b.shape[-2], 1024):
        part = lowest_bits(b.lo[..., k : k + 1024, :], -2)
        lb = part if lb is None else np.minimum(lb, part)
    return np.asarray(ok & fits(lowest_bits(a.lo, -1), lb))
