"""Number formats: rounding, encoding and neighbours, on float64 arrays.

A value of a narrow format is held as the float64 of the same value. `round_to` rounds the exact
float64 value once; conversions of torch and ml_dtypes go through float32 and round twice.
`contract.exactround` states the same rounding in integers and is the one to read against the rule.

Interface: FORMATS, get, round_to, encode, decode, ordered, from_ordered, is_nan, ulp_distance,
next_up, next_down, ulp, all_values.
"""

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contract.errors import DeclarationError
from contract.format_table import (
    FORMATS,
    MODES,
    Format,
    Mode,
    Overflow,
    UnknownFormat,
    get,
    policies,
)

__all__ = [
    "FORMATS",
    "MODES",
    "Bits",
    "Floats",
    "Format",
    "Ints",
    "Mode",
    "Overflow",
    "UnknownFormat",
    "all_values",
    "decode",
    "encode",
    "from_ordered",
    "get",
    "is_nan",
    "next_down",
    "next_up",
    "ordered",
    "round_to",
    "ulp",
    "ulp_distance",
]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]

# Work arrays of 32 Ki float64 stay in the second-level cache; whole-array passes are half as fast.
_CHUNK = 1 << 15


_EXPONENT = np.int64(0x7FF << 52)
_FAR = np.iinfo(np.int64).max


class _Work(threading.local):
    """One work array per thread: a fresh one costs more in page faults than the rounding."""

    def __init__(self) -> None:
        self.spacing = np.empty(_CHUNK)


_WORK = _Work()


# ---- rounding


def round_to(
    x: ArrayLike,
    fmt: str | Format,
    mode: Mode = "nearest_even",
    overflow: Overflow | None = None,
    infinity: Overflow | None = None,
) -> Floats:
    """Each value of x rounded once to a value of the format, as float64.

    Args:
        x: values that float64 holds exactly; other types (longdouble, objects, integers beyond
            2**53) are refused, because their conversion would be a first rounding.
        fmt: format or its name; fp64 is the identity.
        mode: nearest_even | half_away (nearest, ties away from zero) | toward_zero | down | up |
            to_odd (an inexact value takes the neighbour with an odd significand).
        overflow: what a finite value beyond the range becomes: inf | nan | saturate; by default
            inf where the format has one, saturate for e2m1 and integers, else nan. A mode that
            rounds toward zero there (toward_zero, to_odd, down above, up below) always saturates.
        infinity: what an infinite value becomes; by default the same as overflow.

    Specials: a NaN stays NaN, also in a format without one: the caller flags it, `encode` refuses
    it. A zero, and a result that underflows, keeps its sign where the format has a negative zero.
    e8m0: a negative value becomes NaN, and what rounds to zero 2**-127; its ties go up.

    Source: IEEE 754-2019, sections 4.3 and 7.4.
    """
    f, overflow, infinity = policies(fmt, mode, overflow, infinity)
    values = _exact_float64(x)
    result = np.empty(values.shape)
    source, target = values.reshape(-1), result.reshape(-1)
    work = _WORK.spacing
    native = f.name == "fp64" or (f.name == "fp32" and mode == "nearest_even")
    as_ieee = native and overflow == infinity == "inf"
    with np.errstate(all="ignore"):
        for start in range(0, source.size, _CHUNK):
            a = source[start : start + _CHUNK]
            r = target[start : start + _CHUNK]
            if native:
                r[...] = a if f.name == "fp64" else a.astype(np.float32)
            else:
                _round_chunk(a, f, mode, r, work[: a.size])
            # max and min propagate a NaN, which makes the comparison false.
            if not as_ieee and not (r.max() <= f.max and r.min() >= f.lowest):
                _apply_policies(a, f, mode, overflow, infinity, r)
    return result


_SIGN_AND_EXPONENT = np.int64(-(1 << 63)) | _EXPONENT


def round_normal(x: Floats, f: Format, out: Floats | None = None) -> Floats:
    """round_to, to nearest even, of values of which all are normal in the format and below half its largest.

    Adding and subtracting 2**(exponent + 52 - mantissa_bits), of the value's sign, leaves the multiple of the spacing:
    the sum lies in the binade whose float64 spacing is the format's. Half the passes of round_to.
    `out`, a C-ordered array that may be x itself, takes the result.
    """
    x = np.asarray(x, order="C")
    result = np.empty(x.shape) if out is None else out
    source, target = x.reshape(-1), result.reshape(-1)
    shift = np.int64((52 - f.mantissa_bits) << 52)
    for start in range(0, source.size, _CHUNK):
        a, r = source[start : start + _CHUNK], target[start : start + _CHUNK]
        large = _WORK.spacing[: a.size]
        word = large.view(np.int64)
        np.bitwise_and(a.view(np.int64), _SIGN_AND_EXPONENT, out=word)
        np.add(word, shift, out=word)
        np.add(a, large, out=r)
        np.subtract(r, large, out=r)
    return result


# Modes that keep a finite value finite above max, and below lowest.
_FINITE_ABOVE = ("toward_zero", "to_odd", "down")
_FINITE_BELOW = ("toward_zero", "to_odd", "up")
_ROUND: Mapping[str, Callable[..., Any]] = {
    "nearest_even": np.rint,
    "toward_zero": np.trunc,
    "down": np.floor,
    "up": np.ceil,
}


def _exact_float64(x: ArrayLike) -> Floats:
    a = np.asarray(x)
    if a.dtype == np.float64:
        return a
    if a.dtype.kind in "iu" and a.dtype.itemsize == 8:
        if a.size and max(int(a.max()), -int(a.min())) > 2**53:
            raise TypeError("integers beyond 2**53 are not exact in float64; use exactround")
    elif not np.can_cast(a.dtype, np.float64):
        raise TypeError(f"{a.dtype} is not exact in float64; use exactround")
    # A signalling NaN raises the invalid flag when it widens.
    with np.errstate(invalid="ignore"):
        return a.astype(np.float64)


def _array(a: Any) -> Floats:
    """An array, also where NumPy made a scalar of a 0-d result."""
    return np.asarray(a, np.float64)


def _round_chunk(a: Floats, f: Format, mode: Mode, r: Floats, spacing: Floats) -> None:
    """Rounds a to multiples of its spacing as if the exponent had no upper limit, into r."""
    if f.kind == "int":
        _round_integer(a, mode, r)
    else:
        # The spacing is 2**(max(exponent, emin) - mantissa_bits), made in the exponent field.
        # Quotient and product with it are exact: the integer rounding is the only one.
        word = spacing.view(np.int64)
        np.bitwise_and(a.view(np.int64), _EXPONENT, out=word)
        np.maximum(spacing, f.tiny, out=spacing)
        np.subtract(word, np.int64(f.mantissa_bits << 52), out=word)
        np.divide(a, spacing, out=r)
        _round_integer(r, mode, r)
        np.multiply(r, spacing, out=r)
    if f.kind == "scale":
        np.maximum(r, f.lowest, out=r, where=a >= 0)
    elif not f.has_negative_zero:
        np.add(r, 0.0, out=r)


def _round_integer(y: Floats, mode: Mode, r: Floats) -> None:
    """Rounds y to integers into r, which may be y."""
    if mode in _ROUND:
        _ROUND[mode](y, out=r)
        return
    whole = np.trunc(y)
    if mode == "half_away":
        # Not trunc(y + 0.5): the sum 0.49999999999999994 + 0.5 is 1.
        away = np.abs(y - whole) >= 0.5
    else:
        half = whole * 0.5
        away = (half == np.trunc(half)) & (y != whole)
    np.add(whole, np.copysign(away, y), out=r)


def _apply_policies(
    a: Floats, f: Format, mode: Mode, overflow: Overflow, infinity: Overflow, r: Floats
) -> None:
    """Puts what the policies say for values beyond the range and infinities into r."""
    ends = {"inf": (np.inf, -np.inf), "nan": (np.nan, np.nan), "saturate": (f.max, f.lowest)}
    above = f.max if mode in _FINITE_ABOVE else ends[overflow][0]
    below = f.lowest if mode in _FINITE_BELOW else ends[overflow][1]
    np.copyto(r, above, where=r > f.max)
    if f.kind == "scale":
        np.copyto(r, np.nan, where=a < 0)
    else:
        np.copyto(r, below, where=r < f.lowest)
    np.copyto(r, ends[infinity][0], where=a == np.inf)
    if f.kind != "scale":
        np.copyto(r, ends[infinity][1], where=a == -np.inf)


# ---- codes


def encode(values: ArrayLike, fmt: str | Format) -> Bits:
    """Codes of values that the format represents; NaN gives the canonical quiet NaN.

    Integers are two's complement codes. ValueError names the first value without a code.
    """
    f = get(fmt)
    v = _exact_float64(values)
    if f.name in _NATIVE:
        fast = _encode_native(v, f)
        if fast is not None:
            return fast
    nan = np.isnan(v)
    codes: Bits
    with np.errstate(all="ignore"):
        known = _array(np.where(nan, 1.0, v))
        if f.kind == "int":
            inside = np.where((known >= f.lowest) & (known <= f.max), known, 0.0)
            codes = _codes(inside.astype(np.int64), f)
        else:
            codes = (_magnitude_code(known, f) << np.uint64(f.pad)).astype(f.storage)
            codes = codes | np.signbit(known).astype(f.storage) << f.storage.type(f.bits - 1)
    if f.has_nan:
        codes = np.where(nan, f.storage.type(f.nan_code), codes)
    back = decode(codes, f)
    same = (back == v) & (np.signbit(back) == np.signbit(v)) | (nan & np.isnan(back))
    if not same.all():
        index = tuple(int(i) for i in np.argwhere(~same)[0])
        raise ValueError(f"{float(v[index])!r} at index {index} is not a value of {f.name}")
    return np.asarray(codes)


#: Formats whose codes are those of a NumPy float, or the upper half of one.
_NATIVE: Mapping[str, Any] = {"bf16": np.float32, "fp16": np.float16, "fp32": np.float32}


def _encode_native(v: Floats, f: Format) -> Bits | None:
    """Codes by the hardware's conversion, exact for values of the format; None where it meets anything else."""
    with np.errstate(all="ignore"):
        narrow = v.astype(_NATIVE[f.name])
        if not (narrow == v).all():
            return None
    if f.name != "bf16":
        return np.asarray(narrow.view(f.storage))
    word = narrow.view(np.uint32)
    return None if (word & 0xFFFF).any() else np.asarray((word >> 16).astype(np.uint16))


def _magnitude_code(v: Floats, f: Format) -> NDArray[np.uint64]:
    """Code without its sign; meaningless for values the format lacks, which encode finds."""
    if f.name == "fp64":
        return np.asarray(np.abs(v)).view(np.uint64)
    finite = np.abs(np.where(np.isfinite(v), v, 0.0))
    exponent = _exponent(finite, f)
    whole = np.ldexp(finite, f.mantissa_bits - exponent).astype(np.int64)
    # A normal significand carries its hidden bit into the exponent field.
    code = ((exponent - f.emin) << f.mantissa_bits) + whole - (f.kind == "scale")
    return np.asarray(np.where(np.isfinite(v), code, f.largest_code + 1), np.uint64)


def decode(bits: ArrayLike, fmt: str | Format) -> Floats:
    """Values of codes. Bits that the format does not use (tf32, 4-bit codes) are ignored."""
    f = get(fmt)
    b = _codes(bits, f)
    if f.name == "fp64":
        return _array(b.view(np.float64).copy())
    if f.bits == 32 and f.kind == "float":
        with np.errstate(invalid="ignore"):
            return _array((b >> f.pad << f.pad).view(np.float32))
    if f.name == "bf16":
        # the upper half of an fp32 word: faster than its table
        with np.errstate(invalid="ignore"):
            return _array(np.left_shift(b, 16, dtype=np.uint32).view(np.float32))
    if f.bits > 16:
        return _array(b.view(np.dtype(f"i{f.bits // 8}")))
    return _array(_table(f)[b])


def _codes(bits: ArrayLike, f: Format) -> Bits:
    """Codes in the storage type of the format, unused high bits cleared."""
    codes: Bits = np.asarray(bits).astype(f.storage, copy=False)
    if f.bits < 8:
        codes = np.asarray(codes & f.storage.type((1 << f.bits) - 1))
    return codes


@cache
def _table(f: Format) -> Floats:
    """Value of each code of a format of at most 16 bits."""
    codes = np.arange(1 << f.bits)
    if f.kind == "int":
        return _array(codes - ((codes > f.max) << f.bits))
    if f.kind == "scale":
        return _array(np.where(codes == f.nan_code, np.nan, np.ldexp(1.0, codes + f.emin)))
    magnitude = codes & ((1 << (f.bits - 1)) - 1)
    field = np.maximum(magnitude >> f.mantissa_bits, 1)
    whole = magnitude - ((field - 1) << f.mantissa_bits)
    values = _array(np.ldexp(whole.astype(np.float64), field - f.bias - f.mantissa_bits))
    top = f.largest_code
    if f.has_inf:
        values[magnitude == top + 1] = np.inf
    values[magnitude > top + f.has_inf] = np.nan
    values[codes >= 1 << (f.bits - 1)] *= -1.0
    if not f.has_negative_zero:
        values[1 << (f.bits - 1)] = np.nan
    return values


def all_values(fmt: str | Format) -> Floats:
    """Every finite value of a format of at most 16 bits, ascending, -0 before +0."""
    f = get(fmt)
    if f.bits > 16:
        raise DeclarationError(f"{f.name} has 2**{f.bits} codes; all_values lists at most 2**16")
    values = _table(f)
    values = values[np.isfinite(values)]
    return values[np.lexsort((~np.signbit(values), values))]


# ---- order and neighbours


def is_nan(bits: ArrayLike, fmt: str | Format) -> NDArray[np.bool_]:
    """Which codes are NaNs."""
    return np.asarray(np.isnan(decode(bits, fmt)))


def ordered(bits: ArrayLike, fmt: str | Format) -> Ints:
    """Integers in the order of the values; neighbours differ by 1, -0 is -1 and +0 is 0.

    A negative code of magnitude m becomes -1 - m, or -m where the format has no negative zero.
    NaNs lie beyond both ends.
    """
    f = get(fmt)
    b = _codes(bits, f)
    if f.kind == "int" and f.lowest < 0:
        shift = np.int64(64 - f.bits)
        return _integers(b.astype(np.uint64).view(np.int64) << shift >> shift)
    if f.kind != "float":
        return _integers(b)
    sign = f.storage.type(1 << (f.bits - 1))
    magnitude = _integers((b & (sign - f.storage.type(1))) >> f.storage.type(f.pad))
    negative = (b & sign) != 0
    if f.has_negative_zero:
        return _integers(np.where(negative, -1 - magnitude, magnitude))
    # The code of a negative zero is the NaN: it goes below all values.
    magnitude = _integers(np.where(negative & (magnitude == 0), int(sign), magnitude))
    return _integers(np.where(negative, -magnitude, magnitude))


def from_ordered(order: ArrayLike, fmt: str | Format) -> Bits:
    """Codes of ordered integers; the inverse of `ordered`."""
    f = get(fmt)
    n = np.asarray(order, np.int64)
    if f.kind != "float":
        return _codes(n, f)
    sign = f.storage.type(1 << (f.bits - 1))
    below = -1 - n if f.has_negative_zero else (-n) & (int(sign) - 1)
    codes: Bits = np.where(n < 0, below, n).astype(f.storage) << f.storage.type(f.pad)
    codes = np.where(n < 0, codes | sign, codes)
    return codes


def _integers(a: Any) -> Ints:
    return np.asarray(a, np.int64)


def ulp_distance(bits_a: ArrayLike, bits_b: ArrayLike, fmt: str | Format) -> Ints:
    """Steps between two codes; -0 and +0 are one apart.

    Two NaNs are 0 apart, a NaN and a number 2**63 - 1, the largest int64, which also stands for
    every longer distance of fp64 and int64.
    """
    f = get(fmt)
    a, b = ordered(bits_a, f), ordered(bits_b, f)
    with np.errstate(over="ignore"):
        steps = np.maximum(a, b) - np.minimum(a, b)
    # A distance that does not fit wraps to a negative number.
    steps = np.where(steps < 0, _FAR, steps)
    nan_a, nan_b = is_nan(bits_a, f), is_nan(bits_b, f)
    return _integers(np.where(nan_a | nan_b, np.where(nan_a & nan_b, 0, _FAR), steps))


def next_up(values: ArrayLike, fmt: str | Format) -> Floats:
    """The next larger value; above both zeros lies the smallest positive one.

    The largest value of a format without an infinity stays; so do +inf and NaN.

    Source: IEEE 754-2019, nextUp.
    """
    f = get(fmt)
    v = _exact_float64(values)
    if f.kind == "int":
        return _array(np.minimum(v + 1.0, f.max))
    if f.kind == "scale":
        return _array(np.minimum(v * 2.0, f.max))
    # Adding +0 turns -0 into +0, whose successor is the smallest positive value.
    order = ordered(encode(np.where(np.isfinite(v), v, 1.0) + 0.0, f), f)
    last = f.largest_code - (not f.has_inf)
    stepped = decode(from_ordered(order + (order <= last), f), f)
    stepped = _array(np.where(v == -np.inf, f.lowest, stepped))
    return _array(np.where(np.isnan(v) | (v == np.inf), v, stepped))


def next_down(values: ArrayLike, fmt: str | Format) -> Floats:
    """The next smaller value; the mirror of `next_up`."""
    f = get(fmt)
    v = _exact_float64(values)
    if f.kind == "int":
        return _array(np.maximum(v - 1.0, f.lowest))
    if f.kind == "scale":
        return _array(np.maximum(v * 0.5, f.lowest))
    below = -next_up(-v, f)
    return below if f.has_negative_zero else below + 0.0


def ulp(values: ArrayLike, fmt: str | Format) -> Floats:
    """Spacing of the format in the binade of |x|, at least that of the subnormals.

    The values need not be representable. An infinity or NaN gives NaN, an integer format 1.
    """
    f = get(fmt)
    v = _exact_float64(values)
    finite = np.isfinite(v)
    if f.kind == "int":
        return _array(np.where(finite, 1.0, np.nan))
    exponent = _exponent(np.where(finite, v, 0.0), f)
    return _array(np.where(finite, np.ldexp(1.0, exponent - f.mantissa_bits), np.nan))


def _exponent(v: Floats, f: Format) -> Ints:
    """Exponent of the binade of |v|, that of the smallest normal below it."""
    return _integers(np.frexp(np.maximum(np.abs(v), f.tiny))[1] - 1)
