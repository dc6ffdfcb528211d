"""Floats of 16 bits, one or two in a register: add, sub, mul, fma, min, max, neg, abs. PTX ISA 9.7.4.

Each result is rounded once, from a float64 that holds it exactly or rounded to odd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from contract.engines.ptx.formats import FORMATS, Format
from contract.engines.ptx.opcode import (
    Array,
    Call,
    Row,
    Semantics,
    chunked,
    pairwise,
    quiet,
    raw,
)
from contract.engines.ptx.rounding import repaired

STORED = {"f16": 10, "bf16": 7}
LEAST = {"f16": 2.0**-14, "bf16": 2.0**-126}
SIGN = np.uint16(0x8000)


def _wide(fmt: Format, x: Array) -> Array:
    return fmt.value(x).astype(np.float64)


def _sum(fmt: Format, a: Array, b: Array) -> Array:
    return repaired(a + b, a, b, STORED[fmt.name], LEAST[fmt.name])


EXACT: dict[str, Callable[..., Array]] = {
    "add": _sum,
    "sub": lambda fmt, a, b: _sum(fmt, a, -b),
    "mul": lambda fmt, a, b: a * b,
    "fma": lambda fmt, a, b, c: _sum(fmt, a * b, c),
}


def both_widths(call: Call, type: str, sources: int) -> Semantics:
    """A function of single halves as an instruction of one or of two in a register."""
    run = pairwise(call) if type.endswith("x2") else call
    return Semantics(quiet(chunked(run)), (raw(type),) * sources, (raw(type),))


def arithmetic(name: str, sources: int) -> Callable[..., Semantics]:
    """The builder of a rounded instruction."""

    def build(
        type: str, rn: bool = True, ftz: bool = False, sat: bool = False, relu: bool = False
    ) -> Semantics:
        fmt = FORMATS[type.removesuffix("x2")]

        def call(*raws: Array) -> Array:
            read = (fmt.flush(x) if ftz else x for x in raws)
            found = fmt.narrow(EXACT[name](fmt, *(_wide(fmt, x) for x in read)), "rn")
            found = fmt.flush(found) if ftz else found
            found = fmt.saturate(found) if sat else found
            return fmt.relu(found) if relu else found

        return both_widths(call, type, sources)

    return build


def extremum(larger: bool) -> Callable[..., Semantics]:
    """The builder of min and max: +0 is above -0, NaN only where both are, or either (.NaN)."""

    def build(type: str, ftz: bool = False, NaN: bool = False, xorsign: bool = False) -> Semantics:
        fmt = FORMATS[type.removesuffix("x2")]

        def call(a: Array, b: Array) -> Array:
            x, y = (fmt.flush(v) if ftz else v for v in (a, b))
            x, y = (v & ~SIGN if xorsign else v for v in (x, y))
            u, v = fmt.value(x), fmt.value(y)
            first = np.where(u == v, (x & y if larger else x | y) == x, u > v if larger else u < v)
            chosen = np.where(first | np.isnan(v), x, y)
            nan = (np.isnan(u) | np.isnan(v)) if NaN else (np.isnan(u) & np.isnan(v))
            signed = chosen | ((a ^ b) & SIGN) if xorsign else chosen
            return np.where(nan, fmt.nan, signed)

        return both_widths(call, type, 2)

    return build


def sign_bits(name: str) -> Callable[..., Semantics]:
    """The builder of neg and abs, which change the sign bit alone, also of a NaN."""

    def build(type: str, ftz: bool = False) -> Semantics:
        fmt = FORMATS[type.removesuffix("x2")]

        def call(a: Array) -> Array:
            value = fmt.flush(a) if ftz else a
            return value ^ SIGN if name == "neg" else value & ~SIGN

        return both_widths(call, type, 1)

    return build


def _xorsign(larger: bool) -> Callable[..., Semantics]:
    build = extremum(larger)
    return lambda type, NaN, ftz=False: build(type, ftz, NaN, xorsign=True)


def _rows() -> Any:
    for name in ("add", "sub", "mul"):
        yield Row(f"{name} rn? ftz? sat? type=f16|f16x2", arithmetic(name, 2))
        yield Row(f"{name} rn? type=bf16|bf16x2", arithmetic(name, 2))
    fma = arithmetic("fma", 3)
    yield Row("fma rn ftz? sat? type=f16|f16x2", fma)
    yield Row("fma rn ftz? relu type=f16|f16x2", lambda type, ftz: fma(type, ftz=ftz, relu=True))
    yield Row("fma rn relu? type=bf16|bf16x2", fma)
    for name, larger in (("min", False), ("max", True)):
        yield Row(f"{name} ftz? NaN? type=f16|f16x2", extremum(larger))
        yield Row(f"{name} NaN? type=bf16|bf16x2", extremum(larger))
        yield Row(f"{name} ftz? NaN? xorsign abs type=f16|f16x2", _xorsign(larger))
        yield Row(f"{name} NaN? xorsign abs type=bf16|bf16x2", _xorsign(larger))
    for name in ("neg", "abs"):
        yield Row(f"{name} ftz? type=f16|f16x2", sign_bits(name))
        yield Row(f"{name} type=bf16|bf16x2", sign_bits(name))


ROWS: tuple[Row, ...] = tuple(_rows())
