"""The patterns of stress rows: what fault each shows, and how it makes values from random words.

A pattern is a function of a Draw, which holds the windows and seeds of rows with that pattern and
makes random words. It returns float64 values that broadcast to (rows, n), before rounding and often
in work arrays that the next Draw uses again; `contract.rows` copies, rounds and adds the specials.
A new pattern is a line in FAULTS, a function and a line in the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from contract import formats
from contract.format_table import Format
from contract.row_words import Draw, Floats, Ints, Words

#: Pattern -> the fault it shows. The first is the simplest; the last holds NaN and infinities.
FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "normal": "N(0, 1) * 2**lo: a dropped, doubled or misplaced rounding point",
        "zeros": "+0 and -0: lost zero signs, 0 / 0 without eps",
        "constant": "one value: probabilistic error bounds, one-pass variance",
        "alternating": "+c, -c, ...: swapped neighbours, halves taken for pairs",
        "ramp": "i * 2**lo: wrong index, stride or tail",
        "powers": "+-2**k, k in lo..hi: a product that must be exact and is not",
        "integers": "whole numbers up to 2**hi: accumulators too narrow for exact sums",
        "sparse": "1 to 8 non-zero elements: a skipped element or block",
        "window": "random significands, exponents lo..hi: order and width of a sum",
        "cancel": "shuffled pairs +c, -c and a small rest: narrow or split accumulators",
        "near_constant": "c and its neighbours: cancellation in mean and variance",
        "outlier": "normal, 1 to 4 elements 2**6 to 2**9 larger: a clipped or shared scale",
        "ties": "halfway between values of a narrower format, or one beside: rounding direction",
        "saturate": "+-8 to 100: saturated activations, exp without the maximum taken off",
        "tiny": "around the smallest normal of the format or of fp32, or its root: lost eps, flush",
        "subnormal": "subnormals of the format: flush to zero, conversions",
        "huge": "near the maximum of the format or of fp32, or its root: overflow of sums and squares",
        "bits": "uniform codes, finite: every exponent, every significand",
        "raw_bits": "uniform codes with NaN and infinities: lost specials",
    }
)
PATTERNS: tuple[str, ...] = tuple(FAULTS)


def maker(pattern: str, f: Format) -> Callable[[Draw], Floats]:
    """The function that makes rows of this pattern in this format."""
    return (_CODES if f.kind == "int" else _FLOATS).get(pattern) or _SHARED[pattern]


def _zeros(draw: Draw) -> Floats:
    # A seed of 0, the simplest, gives +0 only.
    signs = draw.word(1)
    signs >>= 63
    signs *= draw.seeds != 0
    signs <<= 63
    return signs.view(np.float64)


def _constant(draw: Draw) -> Floats:
    return draw.window(draw.row_word(1))


def _alternating(draw: Draw) -> Floats:
    return draw.window(draw.row_word(1)) * (1.0 - 2.0 * (draw.space.index & 1))


def _ramp(draw: Draw) -> Floats:
    return np.multiply(draw.space.index, draw.scale, out=draw.floats())


def _powers(draw: Draw) -> Floats:
    # Without its significand each value is a power of two.
    w = draw.word(1)
    w &= 0xFFF
    return draw.window(w)


def _integers(draw: Draw) -> Floats:
    limit = np.ldexp(1.0, draw.hi.clip(0, min(draw.f.precision, 52)))
    x = draw.fraction(1)
    x *= 2.0 * limit + 1.0
    np.floor(x, out=x)
    x -= limit
    return x


def _sparse(draw: Draw) -> Floats:
    x = draw.floats()
    x[...] = 0.0
    values = draw.window(draw.word_at(1, np.arange(8)))
    at = (draw.word_at(2, np.arange(8)) >> 32).view(np.int64) % draw.n
    return _scatter(x, values, at, 1 + draw.row_word(3) % 8)


def _window(draw: Draw) -> Floats:
    return draw.window(draw.word(1))


def _cancel(draw: Draw) -> Floats:
    # The first half is +c, the second -c in the order of an affine permutation. A prime above the
    # length has no factor in common with it; longer rows are only rotated.
    pairs = draw.n // 2
    stride = draw.pick(2, _PRIMES) if pairs < min(_PRIMES) else np.ones_like(draw.lo)
    offset = (draw.row_word(3) >> 40).astype(np.int64)
    x = draw.floats()
    x[...] = 0.0
    c = draw.window(draw.word(1))
    x[:, :pairs] = c[:, :pairs]
    place = (np.arange(pairs) * stride + offset) % max(pairs, 1)
    np.negative(np.take_along_axis(c[:, :pairs], place, axis=1), out=x[:, pairs : 2 * pairs])
    # A small rest takes the place of one pair, or of the element that an odd length leaves over.
    rest = np.ldexp(1.0, np.maximum(draw.lo - 8, draw.space.emin))
    if draw.n % 2:
        x[:, -1:] = rest
    else:
        np.put_along_axis(x, place[:, :1], rest, axis=1)
        x[:, pairs] = 0.0
    return x


def _near_constant(draw: Draw) -> Floats:
    c = draw.window(draw.row_word(1))
    step = draw.step(2)
    if draw.f.kind == "int":
        return np.add(np.rint(c), step, out=draw.floats())
    # The last bit of the significand is set aside, so that a step never leaves the binade.
    unit = 52 - draw.f.mantissa_bits
    if draw.f.mantissa_bits < 2:
        return c
    step <<= unit
    step += c.view(np.int64) >> unit << unit | 1 << unit
    return step.view(np.float64)


def _outlier(draw: Draw) -> Floats:
    x = _normal(draw)
    w = draw.word_at(4, np.arange(4))
    at = (w >> 32).view(np.int64) % draw.n
    values = np.take_along_axis(x, at, axis=1) * np.ldexp(64.0, (w & 3).view(np.int64))
    return _scatter(x, values, at, 1 + draw.row_word(3) % 4)


def _ties(draw: Draw) -> Floats:
    narrower = [q for q in (24, 11, 8, 4, 3, 2) if q < draw.f.precision][:3]
    x = draw.window(draw.word(1))
    if not narrower:
        return x
    # Keep q bits with the hidden one, set the next, and move by -1, 0 or 1 unit of the format.
    half = 52 - draw.pick(2, narrower)
    unit = 52 - draw.f.mantissa_bits
    bits = x.view(np.int64)
    bits &= np.int64(-2) << half
    step = draw.step(3)
    step <<= unit
    step *= half > unit
    bits += step
    bits += np.int64(1) << half
    return x


def _saturate(draw: Draw) -> Floats:
    # Magnitudes 8 to 100: the halves of [-1, 1) are moved apart.
    x = draw.fraction(1)
    x *= 184.0
    x -= 92.0
    return np.add(x, np.copysign(8.0, x, out=draw.floats()), out=x)


def _tiny(draw: Draw) -> Floats:
    # Squares of 2**-63 are at the smallest normal of fp32.
    base = draw.pick(2, (draw.f.emin, -126, -63))
    return draw.window(draw.word(1), base + 2, 6)


def _subnormal(draw: Draw) -> Floats:
    # Whole numbers of the smallest value, of every width up to that of a subnormal.
    bits = max(draw.f.mantissa_bits, 1)
    w = draw.word(1)
    width, x = draw.floats().view(np.uint64), draw.floats()
    np.bitwise_and(w, 0x7FF, out=width)
    width *= bits
    width >>= 11
    # The top bit of the word is the sign.
    np.subtract(63, width, out=width)
    whole = draw.floats().view(np.uint64)
    np.left_shift(w, 1, out=whole)
    np.right_shift(whole, width, out=whole)
    np.multiply(whole, 2.0 ** (draw.f.emin - draw.f.mantissa_bits), out=x)
    return np.copysign(x, w.view(np.float64), out=x)


def _huge(draw: Draw) -> Floats:
    # Squares and products of 2**64 overflow fp32, sums of squares of 2**62 do.
    base = draw.pick(2, (draw.space.emax, 127, 64))
    return draw.window(draw.word(1), base, 3)


def _raw_bits(draw: Draw) -> Floats:
    w = draw.word(1)
    w >>= 64 - draw.f.bits
    return formats.decode(w.astype(draw.f.storage), draw.f)


def _bits(draw: Draw) -> Floats:
    x = _raw_bits(draw)
    # Others stand where NaN and infinities would.
    np.copyto(x, draw.window(draw.word(2)), where=~np.isfinite(x))
    return x


def _normal(draw: Draw) -> Floats:
    x = draw.normal(1)
    x *= draw.scale
    return x


def _codes(draw: Draw) -> Floats:
    """Uniform codes, one in sixteen of them an extreme."""
    low, high = draw.f.lowest, draw.f.max
    x = draw.fraction(1)
    x *= (high - low + 1.0) * 17 / 16
    x += low
    np.floor(x, out=x)
    # What lies above the range is split evenly between its ends.
    np.copyto(x, low, where=x > high + (high - low + 1.0) / 32)
    return np.minimum(x, high, out=x)


def _extremes(draw: Draw) -> Floats:
    """The extreme codes and up to three beside them."""
    w = draw.word(1)
    inside = (w & 3).astype(np.float64)
    return np.where(w & 4, draw.f.lowest + inside, draw.f.max - inside)


def _scatter(x: Floats, values: Floats, at: Ints, count: Words) -> Floats:
    """Puts the first `count` values of each row at their places."""
    row, column = np.nonzero(np.arange(values.shape[1]) < count.view(np.int64))
    x[row, at[row, column]] = values[row, column]
    return x


_PRIMES = (1000003, 1299709, 1572869, 2097169, 2750159, 3145739, 4194319, 5000011)

_SHARED: Mapping[str, Callable[[Draw], Floats]] = {
    "zeros": _zeros,
    "constant": _constant,
    "alternating": _alternating,
    "ramp": _ramp,
    "powers": _powers,
    "integers": _integers,
    "sparse": _sparse,
    "window": _window,
    "cancel": _cancel,
    "near_constant": _near_constant,
    "ties": _ties,
}
_FLOATS: Mapping[str, Callable[[Draw], Floats]] = {
    "normal": _normal,
    "outlier": _outlier,
    "saturate": _saturate,
    "tiny": _tiny,
    "subnormal": _subnormal,
    "huge": _huge,
    "bits": _bits,
    "raw_bits": _raw_bits,
}
_CODES: Mapping[str, Callable[[Draw], Floats]] = {
    "normal": _codes,
    "outlier": _codes,
    "saturate": _extremes,
    "tiny": lambda draw: draw.step(1).astype(np.float64),
    "subnormal": lambda draw: draw.step(1).astype(np.float64),
    "huge": _extremes,
    "bits": _codes,
    "raw_bits": _codes,
}
