"""cvt: every conversion between integers, floats of 16 to 64 bits, tf32 and the 8-bit floats. PTX ISA 9.7.9, cvt.

Where two sources become one register, the first is the upper half.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.engines.ptx.formats import FORMATS, NAN32, Format, bf16_of_f32, clean32, clean64
from contract.engines.ptx.opcode import (
    UNSIGNED,
    Array,
    Call,
    Row,
    Semantics,
    bits,
    chunked,
    join,
    number,
    quiet,
    raw,
)

INTEGERS = "u8|u16|u32|u64|s8|s16|s32|s64"
TO_WHOLE: dict[str, Call] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def integer_to_integer(to: str, of: str, sat: bool = False) -> Semantics:
    """Extended or chopped; .sat clamps to the range."""
    read, write = number(of), number(to)
    low = max(np.iinfo(read).min, np.iinfo(write).min)
    high = min(np.iinfo(read).max, np.iinfo(write).max)

    def call(a: Array) -> Array:
        value = a.view(read)
        clamped = np.clip(value, read(low), read(high)) if sat else value
        found: Array = clamped.astype(write).view(UNSIGNED[bits(to)])
        return found

    return Semantics(quiet(call), (raw(of),), (raw(to),), signed=to[0] == "s")


def float_to_integer(
    to: str, of: str, irnd: str, ftz: bool = False, sat: bool = False
) -> Semantics:
    """Rounded to a whole number and clamped, with or without .sat.

    NaN gives 0, but the highest bit alone where the source is f64 or the result has 64 bits.
    """
    fmt, write = FORMATS[of], number(to)
    limits, unsigned = np.iinfo(write), UNSIGNED[bits(to)]
    nan = unsigned(1 << (bits(to) - 1) if of == "f64" or bits(to) == 64 else 0)

    def call(a: Array) -> Array:
        value = fmt.value(fmt.flush(a) if ftz else a)
        whole = TO_WHOLE[irnd](value).astype(np.float64)
        inside = whole.astype(np.uint64 if to == "u64" else np.int64).astype(write)
        clamped = np.where(whole >= float(limits.max), write(limits.max), inside)
        clamped = np.where(whole < float(limits.min), write(limits.min), clamped)
        found: Array = np.where(np.isnan(whole), nan, clamped.view(unsigned))
        return found

    return Semantics(quiet(call), (raw(of),), (raw(to),), signed=to[0] == "s")


def _sides(nearest: Array, value: Array) -> tuple[Array, Array]:
    """Whether the nearest float64 is above the 64-bit integer, and whether it is below."""
    beyond = nearest >= (2.0**63 if value.dtype.kind == "i" else 2.0**64)
    back = np.where(beyond, 0, nearest).astype(value.dtype)
    return beyond | (back > value), ~beyond & (back < value)


def _odd(value: Array) -> Array:
    """64-bit integers as float64, rounded to odd."""
    nearest = value.astype(np.float64)
    above, below = _sides(nearest, value)
    code = nearest.view(np.int64)
    outward = np.where(value < 0, above, below)
    inexact = (above | below) & ((code & 1) == 0)
    odd: Array = np.where(inexact, code + np.where(outward, 1, -1), code)
    return odd.view(np.float64)


def integer_to_float(to: str, of: str, rnd: str, ftz: bool = False, sat: bool = False) -> Semantics:
    """Rounded once."""
    fmt, read = FORMATS[to], number(of)

    def call(a: Array) -> Array:
        value = a.view(read)
        if rnd == "rn" and to == "f32":
            found = clean32(value.astype(np.float32))
        elif rnd == "rn" and to == "f64":
            found = clean64(value.astype(np.float64))
        elif to == "f64":
            found = _directed64(value, rnd)
        else:
            found = fmt.narrow(_odd(value) if bits(of) == 64 else value.astype(np.float64), rnd)
        return fmt.saturate(found) if sat else found

    return Semantics(quiet(call), (raw(of),), (raw(to),))


def _directed64(value: Array, rnd: str) -> Array:
    """Integers to fp64 in a directed mode: the nearest, moved where it lies on the wrong side."""
    nearest = value.astype(np.float64)
    if value.dtype.itemsize < 8:
        return nearest.view(np.uint64)
    above, below = _sides(nearest, value)
    toward = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[rnd]
    wrong = {"rz": np.where(value < 0, below, above), "rm": above, "rp": below}[rnd]
    moved: Array = np.where(wrong, np.nextafter(nearest, toward), nearest)
    return moved.view(np.uint64)


def _read(fmt: Format, a: Array, ftz: bool) -> Array:
    return fmt.value(fmt.flush(a) if ftz and fmt.name == "f32" else a)


def float_to_float(
    to: str,
    of: str,
    rnd: str = "rn",
    irnd: str = "",
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
    satfinite: bool = False,
) -> Semantics:
    """Rounded once, or exactly widened; `irnd` rounds to a whole number instead; .ftz is of fp32 values alone."""
    source, target = FORMATS[of], FORMATS[to]
    simple = not (irnd or ftz or sat or relu or satfinite) and rnd == "rn"

    def call(a: Array) -> Array:
        value = _read(source, a, ftz)
        whole = TO_WHOLE[irnd](value) if irnd else value
        found = target.narrow(whole.astype(np.float64), rnd, satfinite)
        found = target.flush(found) if ftz and to == "f32" else found
        found = target.saturate(found) if sat else found
        return target.relu(found) if relu else found

    fast = FAST.get((to, of)) if simple else None
    return Semantics(quiet(chunked(fast or call)), (raw(of),), (raw(to),))


# The conversions that kernels are made of, without the way through float64.
FAST: dict[tuple[str, str], Call] = {
    ("bf16", "f32"): bf16_of_f32,
    ("f16", "f32"): lambda a: FORMATS["f16"].narrow(a.view(np.float32), "rn"),
    ("f32", "bf16"): lambda a: clean32(FORMATS["bf16"].value(a)),
    ("f32", "f16"): lambda a: clean32(FORMATS["f16"].value(a)),
}


def to_pair(to: str, rnd: str, relu: bool = False, satfinite: bool = False) -> Semantics:
    """Two fp32 values into packed halves."""
    one = float_to_float(to.removesuffix("x2"), "f32", rnd, relu=relu, satfinite=satfinite).call
    return Semantics(lambda a, b: join(one(b), one(a)), ("b32", "b32"), ("b32",))


def _half_away_tf32(a: Array) -> Array:
    """Half a unit more of the magnitude, then cut."""
    rounded = (a + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where((a & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), NAN32, rounded)


def to_tf32(rnd: str, relu: bool = False, satfinite: bool = False) -> Semantics:
    """fp32 to tf32 in a 32-bit register, its low 13 bits zero."""
    target = FORMATS["tf32"]

    def call(a: Array) -> Array:
        found = target.narrow(a.view(np.float32).astype(np.float64), rnd, satfinite)
        return target.relu(found) if relu else found

    fast = rnd == "rna" and not satfinite
    return Semantics(quiet(chunked(_half_away_tf32 if fast else call)), ("b32",), ("b32",))


def _byte_pair(target: Format, high: Array, low: Array, relu: bool) -> Array:
    codes = [target.narrow(x.astype(np.float64), "rn", satfinite=True) for x in (low, high)]
    codes = [target.relu(code) if relu else code for code in codes]
    pair: Array = codes[0].astype(np.uint16) | (codes[1].astype(np.uint16) << np.uint16(8))
    return pair


def to_bytes(to: str, relu: bool = False) -> Semantics:
    """Two fp32 values into two 8-bit floats, clamped to the finite range."""
    target = FORMATS[to.removesuffix("x2")]

    def call(a: Array, b: Array) -> Array:
        return _byte_pair(target, a.view(np.float32), b.view(np.float32), relu)

    return Semantics(quiet(call), ("b32", "b32"), ("b16",))


def pair_to_bytes(to: str, relu: bool = False) -> Semantics:
    """Packed f16 into two 8-bit floats, clamped to the finite range."""
    target, half = FORMATS[to.removesuffix("x2")], FORMATS["f16"]

    def call(a: Array) -> Array:
        low, high = a.astype(np.uint16), (a >> np.uint32(16)).astype(np.uint16)
        return _byte_pair(target, half.value(high), half.value(low), relu)

    return Semantics(quiet(call), ("b32",), ("b16",))


def bytes_to_pair(of: str, relu: bool = False) -> Semantics:
    """Two 8-bit floats into packed f16, which holds their values."""
    source, half = FORMATS[of.removesuffix("x2")], FORMATS["f16"]

    def call(a: Array) -> Array:
        parts = a.astype(np.uint8), (a >> np.uint16(8)).astype(np.uint8)
        found = [half.narrow(source.value(x).astype(np.float64), "rn") for x in parts]
        return join(*(half.relu(x) if relu else x for x in found))

    return Semantics(quiet(call), ("b16",), ("b32",))


def _rows() -> Any:
    whole, mode = "irnd=rni|rzi|rmi|rpi", "rnd=rn|rz|rm|rp"
    yield Row(f"cvt sat? to={INTEGERS} of={INTEGERS}", integer_to_integer)
    yield Row(f"cvt {whole} ftz? sat? to={INTEGERS} of=f32", float_to_integer)
    yield Row(f"cvt {whole} sat? to={INTEGERS} of=f16|bf16|f64", float_to_integer)
    yield Row(f"cvt {mode} ftz? sat? to=f32 of={INTEGERS}", integer_to_float)
    yield Row(f"cvt {mode} sat? to=f16|bf16|f64 of={INTEGERS}", integer_to_float)
    yield Row("cvt ftz? sat? to=f32 of=f16|bf16", float_to_float)
    yield Row("cvt ftz? sat? to=f64 of=f32", float_to_float)
    yield Row("cvt sat? to=f64 of=f16|bf16", float_to_float)
    yield Row(f"cvt {mode} ftz? sat? to=f32 of=f64", float_to_float)
    yield Row(f"cvt {mode} ftz? sat? to=f16|bf16 of=f32", float_to_float)
    yield Row(f"cvt {mode} sat? to=f16|bf16 of=f64", float_to_float)
    yield Row(f"cvt {mode} sat? to=bf16 of=f16", float_to_float)
    yield Row(f"cvt {mode} sat? to=f16 of=bf16", float_to_float)
    yield Row(f"cvt {whole}? ftz? sat? to=f32 of=f32", float_to_float)
    for type in ("f16", "f64", "bf16"):
        yield Row(f"cvt {whole}? sat? to={type} of={type}", float_to_float)
    yield Row("cvt rnd=rn|rz relu satfinite? to=f16|bf16 of=f32", _clamped(float_to_float))
    yield Row("cvt rnd=rn|rz satfinite to=f16|bf16 of=f32", _finite(float_to_float))
    yield Row("cvt rnd=rn|rz relu? satfinite? to=f16x2|bf16x2 f32", to_pair)
    yield Row("cvt rnd=rn|rz|rna satfinite? tf32 f32", to_tf32)
    yield Row("cvt rnd=rn|rz satfinite? relu tf32 f32", _clamped(to_tf32))
    yield Row("cvt rn satfinite relu? to=e4m3x2|e5m2x2 f32", to_bytes)
    yield Row("cvt rn satfinite relu? to=e4m3x2|e5m2x2 f16x2", pair_to_bytes)
    yield Row("cvt rn relu? f16x2 of=e4m3x2|e5m2x2", bytes_to_pair)


def _clamped(build: Any) -> Any:
    return lambda **fields: build(relu=True, **fields)


def _finite(build: Any) -> Any:
    return lambda **fields: build(satfinite=True, **fields)


ROWS: tuple[Row, ...] = tuple(_rows())
