"""Comparison and selection of integers and floats: setp, set, selp, slct. PTX ISA 9.7.6 and 9.7.7.

Floats of any width are compared as float32 or float64, which holds their values exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.engines.ptx.formats import FORMATS, flushed
from contract.engines.ptx.opcode import Array, Call, Row, Semantics, join, number, quiet, raw

ORDERED: dict[str, Call] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOLEAN: dict[str, Call] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
COMBINE = "combine=and|or|xor?"


def integer_test(comparison: str, type: str) -> Call:
    """Two registers compared as integers of that type."""
    compare, read = ORDERED[UNSIGNED_NAMES.get(comparison, comparison)], number(type)
    return lambda a, b: compare(a.view(read), b.view(read))


def _apart(x: Array, y: Array) -> Array:
    """Less or greater, which a NaN is not."""
    apart: Array = np.less(x, y) | np.greater(x, y)
    return apart


# Those that end in u are also true where one is NaN, so they deny the opposite.
FLOAT_TESTS: dict[str, Call] = {
    **ORDERED,
    "ne": _apart,
    "equ": lambda x, y: ~_apart(x, y),
    "neu": np.not_equal,
    "ltu": lambda x, y: ~np.greater_equal(x, y),
    "leu": lambda x, y: ~np.greater(x, y),
    "gtu": lambda x, y: ~np.less_equal(x, y),
    "geu": lambda x, y: ~np.less(x, y),
    "num": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}
FLOAT_COMPARISONS = "|".join(FLOAT_TESTS)


def float_test(comparison: str, type: str, ftz: bool = False) -> Call:
    """Two registers compared as floats."""
    fmt, compare = FORMATS[type], FLOAT_TESTS[comparison]

    def flushing(a: Array, b: Array) -> Any:
        return compare(fmt.value(fmt.flush(a)), fmt.value(fmt.flush(b)))

    return flushing if ftz else lambda a, b: compare(fmt.value(a), fmt.value(b))


def _both(test: Call, combine: str) -> tuple[Call, tuple[str, ...]]:
    """p and q of setp: the test, and what it denies, each combined with the last source."""

    def plain(a: Array, b: Array) -> tuple[Array, Array]:
        found = test(a, b)
        return found, ~found

    def combined(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        found = test(a, b)
        return BOOLEAN[combine](found, c), BOOLEAN[combine](~found, c)

    return (combined, ("pred",)) if combine else (plain, ())


def set_predicate(test: Call, combine: str, type: str) -> Semantics:
    """setp of one value."""
    call, extra = _both(test, combine)
    return Semantics(quiet(call), (raw(type), raw(type), *extra), ("pred", "pred"))


def setp_integer(comparison: str, combine: str, type: str) -> Semantics:
    """setp of integers or untyped bits."""
    return set_predicate(integer_test(comparison, type), combine, type)


def setp_float(comparison: str, combine: str, type: str, ftz: bool = False) -> Semantics:
    """setp of floats."""
    return set_predicate(float_test(comparison, type, ftz), combine, type)


def _halves(a: Array) -> tuple[Array, Array]:
    return a.astype(np.uint16), (a >> np.uint32(16)).astype(np.uint16)


def setp_pair(comparison: str, combine: str, type: str, ftz: bool = False) -> Semantics:
    """setp of packed halves: p is of the lower ones, q of the upper ones."""
    test = float_test(comparison, type.removesuffix("x2"), ftz)

    def call(a: Array, b: Array, *c: Array) -> tuple[Array, ...]:
        found = [test(x, y) for x, y in zip(_halves(a), _halves(b), strict=True)]
        return tuple(BOOLEAN[combine](p, *c) if combine else p for p in found)

    return Semantics(quiet(call), ("b32", "b32", *(("pred",) if combine else ())), ("pred", "pred"))


TRUE = {"u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}
TRUE |= {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}


def set_value(test: Call, combine: str, into: str, type: str) -> Semantics:
    """set: all ones (1.0 for a float) where true, else zero."""
    both, extra = _both(test, combine)
    one = number(raw(into))(TRUE[into])

    def call(*sources: Array) -> Array:
        chosen: Array = np.where(both(*sources)[0], one, one.dtype.type(0))
        return chosen

    return Semantics(quiet(call), (raw(type), raw(type), *extra), (raw(into),))


def set_integer(comparison: str, combine: str, into: str, type: str) -> Semantics:
    """set of integers."""
    return set_value(integer_test(comparison, type), combine, into, type)


def set_float(comparison: str, combine: str, into: str, type: str, ftz: bool = False) -> Semantics:
    """set of floats."""
    return set_value(float_test(comparison, type, ftz), combine, into, type)


def set_pair(comparison: str, combine: str, type: str, into: str, ftz: bool = False) -> Semantics:
    """set of packed halves into packed halves."""
    test = float_test(comparison, type.removesuffix("x2"), ftz)
    one = np.uint16(TRUE["s16" if into in ("u32", "s32") else into.removesuffix("x2")])

    def call(a: Array, b: Array, *c: Array) -> Array:
        found = [test(x, y) for x, y in zip(_halves(a), _halves(b), strict=True)]
        combined = [BOOLEAN[combine](p, *c) if combine else p for p in found]
        return join(*(np.where(p, one, np.uint16(0)) for p in combined))

    return Semantics(quiet(call), ("b32", "b32", *(("pred",) if combine else ())), ("b32",))


def select(type: str) -> Semantics:
    """selp: a where the predicate holds, else b."""
    return Semantics(
        lambda a, b, p: np.where(p, a, b), (raw(type), raw(type), "pred"), (raw(type),)
    )


def select_by_sign(type: str, by: str, ftz: bool = False) -> Semantics:
    """slct: a where c >= 0 (which NaN is not, and -0 is), else b."""

    def call(a: Array, b: Array, c: Array) -> Array:
        value = c.view(np.float32 if by == "f32" else np.int32)
        return np.where(value >= 0, a, b)

    def flushing(a: Array, b: Array, c: Array) -> Array:
        return call(a, b, flushed(c))

    return Semantics(quiet(flushing if ftz else call), (raw(type), raw(type), "b32"), (raw(type),))


SELECTED = "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"


def _rows() -> Any:
    signed, unsigned = "s16|s32|s64", "u16|u32|u64"
    plain, order, low = "eq|ne", "lt|le|gt|ge", "lo|ls|hi|hs"
    every = f"{plain}|{order}|{low}"
    yield Row(f"setp comparison={every} {COMBINE} type={unsigned}", setp_integer)
    yield Row(f"setp comparison={plain}|{order} {COMBINE} type={signed}", setp_integer)
    yield Row(f"setp comparison={plain} {COMBINE} type=b16|b32|b64", setp_integer)
    yield Row(f"setp comparison={FLOAT_COMPARISONS} {COMBINE} ftz? type=f32", setp_float)
    yield Row(f"setp comparison={FLOAT_COMPARISONS} {COMBINE} type=f64|bf16", setp_float)
    yield Row(f"setp comparison={FLOAT_COMPARISONS} {COMBINE} ftz? type=f16", setp_float)
    yield Row(f"setp comparison={FLOAT_COMPARISONS} {COMBINE} ftz? type=f16x2", setp_pair)
    yield Row(f"setp comparison={FLOAT_COMPARISONS} {COMBINE} type=bf16x2", setp_pair)
    into = "into=u32|s32|f32"
    yield Row(f"set comparison={every} {COMBINE} {into} type={unsigned}", set_integer)
    yield Row(f"set comparison={plain}|{order} {COMBINE} {into} type={signed}", set_integer)
    yield Row(f"set comparison={plain} {COMBINE} {into} type=b16|b32|b64", set_integer)
    yield Row(f"set comparison={FLOAT_COMPARISONS} {COMBINE} ftz? {into} type=f32", set_float)
    yield Row(f"set comparison={FLOAT_COMPARISONS} {COMBINE} {into} type=f64", set_float)
    narrow = "into=u16|s16|u32|s32|f16"
    yield Row(f"set comparison={FLOAT_COMPARISONS} {COMBINE} ftz? {narrow} type=f16", set_float)
    narrow = "into=u16|s16|u32|s32|bf16"
    yield Row(f"set comparison={FLOAT_COMPARISONS} {COMBINE} {narrow} type=bf16", set_float)
    pair = "into=u32|s32|f16x2"
    yield Row(f"set comparison={FLOAT_COMPARISONS} {COMBINE} ftz? {pair} type=f16x2", set_pair)
    pair = "into=u32|s32|bf16x2"
    yield Row(f"set comparison={FLOAT_COMPARISONS} {COMBINE} {pair} type=bf16x2", set_pair)
    yield Row(f"selp type={SELECTED}", select)
    yield Row(f"slct type={SELECTED} by=s32", select_by_sign)
    yield Row(f"slct ftz? type={SELECTED} by=f32", select_by_sign)


ROWS: tuple[Row, ...] = tuple(_rows())
