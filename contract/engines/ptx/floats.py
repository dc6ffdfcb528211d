"""Floats of 32 and 64 bits: add to fma, division and roots, minimum and maximum, signs. PTX ISA 9.7.3.

To nearest, add, sub, mul, div and sqrt are NumPy's own; .ftz flushes subnormal sources and results to zeros of their sign,
the result after it is rounded; .sat clamps to [+0, 1], NaN to +0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from contract.engines.ptx import rounding
from contract.engines.ptx.formats import FORMATS, clean32, clean64, flushed
from contract.engines.ptx.opcode import UNSIGNED, Array, Call, Row, Semantics, bits, quiet, raw

NEAREST: dict[str, Call] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": lambda a: a.dtype.type(1) / a,
    "sqrt": np.sqrt,
}
FLOAT = {32: np.float32, 64: np.float64}


def _one_like(a: Array) -> Array:
    return np.ones(1, a.dtype)


def _directed32(name: str, mode: str) -> Call:
    """An fp32 instruction in a directed mode."""
    wide = np.float64
    calls: dict[str, Call] = {
        "add": lambda a, b: rounding.sum32(a.astype(wide), b.astype(wide), mode),
        "sub": lambda a, b: rounding.sum32(a.astype(wide), -b.astype(wide), mode),
        "mul": lambda a, b: rounding.product32(a, b, mode),
        "fma": lambda a, b, c: rounding.sum32(a.astype(wide) * b, c.astype(wide), mode),
        "div": lambda a, b: rounding.quotient32(a, b, mode),
        "rcp": lambda a: rounding.quotient32(_one_like(a), a, mode),
        "sqrt": lambda a: rounding.root32(a, mode),
    }
    return calls[name]


def _directed64(name: str, mode: str) -> Call:
    """An fp64 instruction in a directed mode."""
    if name == "sqrt":
        return lambda a: rounding.root64(a, mode)
    if name == "rcp":
        return lambda a: rounding.directed64("div", NEAREST["rcp"](a), mode, _one_like(a), a)
    nearest = rounding.fused64 if name == "fma" else NEAREST[name]
    return lambda *x: rounding.directed64(name, nearest(*x), mode, *x)


def rounded(name: str, mode: str, width: int) -> Call:
    """The instruction on values, rounded once."""
    if mode in ("", "rn"):
        if name == "fma":
            return rounding.fused32 if width == 32 else rounding.fused64
        return NEAREST[name]
    return (_directed32 if width == 32 else _directed64)(name, mode)


def on_bits(call: Call, width: int, ftz: bool = False, sat: bool = False) -> Call:
    """A function of values as one of raw bits, with flushing and clamping around it."""
    float_type, clean = FLOAT[width], clean32 if width == 32 else clean64

    def plain(*sources: Array) -> Array:
        return clean(call(*(x.view(float_type) for x in sources)))

    def modified(*sources: Array) -> Array:
        result = plain(*(flushed(x) if ftz else x for x in sources))
        result = flushed(result) if ftz else result
        return FORMATS["f32"].saturate(result) if sat else result

    return quiet(modified if ftz or sat else plain)


def arithmetic(name: str, sources: int) -> Callable[..., Semantics]:
    """The builder of a rounded instruction."""

    def build(type: str, rnd: str = "", ftz: bool = False, sat: bool = False) -> Semantics:
        call = on_bits(rounded(name, rnd, bits(type)), bits(type), ftz, sat)
        return Semantics(call, (raw(type),) * sources, (raw(type),))

    return build


def extreme(a: Array, b: Array, *, larger: bool, nan: bool) -> Array:
    """The larger or smaller of two floats of raw bits: +0 is above -0; NaN only where both are, or either (`nan`)."""
    unsigned = a.dtype
    x, y = (v.view(FLOAT[8 * unsigned.itemsize]) for v in (a, b))
    chosen = (np.fmax if larger else np.fmin)(x, y)
    if nan:
        chosen = np.where(np.isnan(x), x, np.where(np.isnan(y), y, chosen))
    clean: Array = (clean32 if unsigned.itemsize == 4 else clean64)(chosen)
    equal = x == y
    return np.where(equal, a & b if larger else a | b, clean) if equal.any() else clean


def extremum(larger: bool, sources: int) -> Callable[..., Semantics]:
    """The builder of min and max of two or three floats."""

    def build(
        type: str, ftz: bool = False, NaN: bool = False, xorsign: bool = False, abs: bool = False
    ) -> Semantics:
        magnitude = UNSIGNED[bits(type)](2 ** (bits(type) - 1) - 1)

        def call(*values: Array) -> Array:
            signs = values[0] ^ values[1]
            read = tuple(flushed(x) if ftz else x for x in values)
            read = tuple(x & magnitude for x in read) if abs or xorsign else read
            found = read[0]
            for value in read[1:]:
                found = extreme(found, value, larger=larger, nan=NaN)
            if xorsign:
                number = found <= UNSIGNED[32](0x7F800000)
                found = np.where(number, found | (signs & ~magnitude), found)
            return found

        return Semantics(quiet(call), (raw(type),) * sources, (raw(type),))

    return build


def sign_bits(name: str) -> Callable[..., Semantics]:
    """The builder of neg and abs, which change the sign bit alone, also of a NaN."""

    def build(type: str, ftz: bool = False) -> Semantics:
        sign = UNSIGNED[bits(type)](1 << (bits(type) - 1))

        def call(a: Array) -> Array:
            value = flushed(a) if ftz else a
            found: Array = value ^ sign if name == "neg" else value & ~sign
            return found

        return Semantics(quiet(call), (raw(type),), (raw(type),))

    return build


def copy_sign(type: str) -> Semantics:
    """copysign d, a, b: b with the sign of a."""
    sign = UNSIGNED[bits(type)](1 << (bits(type) - 1))
    return Semantics(lambda a, b: (a & sign) | (b & ~sign), (raw(type),) * 2, (raw(type),))


def _normal(value: Array) -> Array:
    normal: Array = np.isfinite(value) & (np.abs(value) >= np.finfo(value.dtype).tiny)
    return normal


TESTS: dict[str, Call] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": _normal,
    "subnormal": lambda x: np.isfinite(x) & ~_normal(x) & (x != 0),
}


def test_property(op: str, type: str) -> Semantics:
    """testp."""
    float_type, test = FLOAT[bits(type)], TESTS[op]
    return Semantics(lambda a: test(a.view(float_type)), (raw(type),), ("pred",))


def _rows() -> Any:
    for name in ("add", "sub", "mul"):
        yield Row(f"{name} rnd=rn|rz|rm|rp? ftz? sat? type=f32", arithmetic(name, 2))
        yield Row(f"{name} rnd=rn|rz|rm|rp? type=f64", arithmetic(name, 2))
    for name in ("fma", "mad"):
        yield Row(f"{name} rnd=rn|rz|rm|rp ftz? sat? type=f32", arithmetic("fma", 3))
        yield Row(f"{name} rnd=rn|rz|rm|rp type=f64", arithmetic("fma", 3))
    for name, sources in (("div", 2), ("rcp", 1), ("sqrt", 1)):
        yield Row(f"{name} rnd=rn|rz|rm|rp ftz? type=f32", arithmetic(name, sources))
        yield Row(f"{name} rnd=rn|rz|rm|rp type=f64", arithmetic(name, sources))
    for name, larger in (("min", False), ("max", True)):
        yield Row(f"{name} ftz? NaN? type=f32", extremum(larger, 2))
        yield Row(f"{name} ftz? NaN? xorsign abs type=f32", xorsign(larger))
        yield Row(f"{name} type=f64", extremum(larger, 2))
    for name in ("neg", "abs"):
        yield Row(f"{name} ftz? type=f32", sign_bits(name))
        yield Row(f"{name} type=f64", sign_bits(name))
    yield Row("copysign type=f32|f64", copy_sign)
    yield Row(f"testp op={'|'.join(TESTS)} type=f32|f64", test_property)


def xorsign(larger: bool) -> Callable[..., Semantics]:
    """The builder of min and max of magnitudes that take the exclusive or of the signs."""
    build = extremum(larger, 2)
    return lambda type, ftz, NaN: build(type, ftz, NaN, xorsign=True)


ROWS: tuple[Row, ...] = tuple(_rows())
