"""Integer arithmetic: add to dp4a. PTX ISA 9.7.1 and 9.7.2 (extended precision), all results modulo 2^bits.

Division by zero is unspecified in the ISA: the quotient is all ones here, the remainder the dividend.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.engines.ptx.opcode import (
    SIGNED,
    UNSIGNED,
    Array,
    Call,
    Row,
    Semantics,
    bits,
    number,
    pairwise,
    quiet,
    raw,
)

INTEGERS = "u16|u32|u64|s16|s32|s64"


def typed(call: Call, kind: str) -> Call:
    """A function of numbers as one of raw bits."""
    read, write = number(kind), UNSIGNED[bits(kind)]
    if read is write:
        # as they are held
        return call

    def on_bits(*sources: Array) -> Any:
        return call(*[x.view(read) for x in sources]).view(write)

    return on_bits


def widened(call: Call, kind: str) -> Call:
    """A function of 64-bit integers, exact for 32-bit ones, clamped to the type."""
    read, limits = number(kind), np.iinfo(number(kind))

    def clamped(*sources: Array) -> Array:
        exact = call(*(x.view(read).astype(np.int64) for x in sources))
        clipped: Array = np.clip(exact, limits.min, limits.max).astype(read)
        return clipped.view(UNSIGNED[limits.bits])

    return clamped


def high(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    width = 8 * a.dtype.itemsize
    if width < 64:
        double = (SIGNED if a.dtype.kind == "i" else UNSIGNED)[2 * width]
        upper: Array = ((a.astype(double) * b.astype(double)) >> double(width)).astype(a.dtype)
        return upper
    x, y = a.view(np.uint64), b.view(np.uint64)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = (middle & mask) + x0 * y1
    product: Array = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        product = product - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return product.view(a.dtype)


def wide(a: Array, b: Array) -> Array:
    """The whole product, twice as wide."""
    double = (SIGNED if a.dtype.kind == "i" else UNSIGNED)[16 * a.dtype.itemsize]
    product: Array = a.astype(double) * b.astype(double)
    return product


def low(a: Array, b: Array) -> Array:
    """The lower half of the product."""
    product: Array = a * b
    return product


# the bits of the result are the same for signed and unsigned numbers
MODULAR = frozenset(["add", "sub", "lo"])


def modular(type: str) -> str:
    """The unsigned type of that width, packed or not."""
    return "u" + type[1:]


PRODUCTS = {"lo": low, "hi": high}


def quotient(a: Array, b: Array) -> Array:
    """Division toward zero."""
    unsigned = UNSIGNED[8 * a.dtype.itemsize]
    x, y = np.abs(a).view(unsigned), np.abs(b).view(unsigned)
    divided = (x // np.maximum(y, unsigned(1))).view(a.dtype)
    signed: Array = (
        np.where((a < 0) ^ (b < 0), -divided, divided) if a.dtype.kind == "i" else divided
    )
    return np.where(b == 0, ~a.dtype.type(0), signed)


def remainder(a: Array, b: Array) -> Array:
    """What the division toward zero leaves, with the sign of the dividend."""
    left: Array = np.where(b == 0, a, a - quotient(a, b) * b)
    return left


def distance(a: Array, b: Array, c: Array) -> Array:
    """c + |a - b|."""
    sad: Array = c + np.where(a < b, b - a, a - b)
    return sad


BINARY: dict[str, Call] = {
    "add": np.add,
    "sub": np.subtract,
    "div": quotient,
    "rem": remainder,
    "min": np.minimum,
    "max": np.maximum,
}
UNARY: dict[str, Call] = {"neg": np.negative, "abs": np.abs}


def binary(name: str) -> Any:
    """The builder of an instruction of two sources of one type."""

    def build(type: str, relu: bool = False) -> Semantics:
        plain = BINARY[name]
        if name in MODULAR and not relu:
            type = modular(type)
        call: Call = (lambda a, b: np.maximum(plain(a, b), 0)) if relu else plain
        kind = raw(type)
        if type.endswith("x2"):
            return Semantics(pairwise(typed(call, type.removesuffix("x2"))), (kind, kind), (kind,))
        return Semantics(quiet(typed(call, type)), (kind, kind), (kind,))

    return build


def unary(name: str) -> Any:
    """The builder of an instruction of one source."""

    def build(type: str) -> Semantics:
        return Semantics(quiet(typed(UNARY[name], type)), (raw(type),), (raw(type),))

    return build


def saturated(name: str) -> Any:
    """The builder of add.sat and sub.sat."""

    def build() -> Semantics:
        return Semantics(widened(BINARY[name], "s32"), ("b32", "b32"), ("b32",))

    return build


def multiply(half: str, type: str) -> Semantics:
    """mul.lo, mul.hi."""
    of = modular(type) if half in MODULAR else type
    return Semantics(quiet(typed(PRODUCTS[half], of)), (raw(type), raw(type)), (raw(type),))


def _doubled(type: str) -> str:
    return f"b{2 * bits(type)}"


def multiply_wide(type: str) -> Semantics:
    """mul.wide: the product is twice as wide as the factors."""
    read, write = number(type), UNSIGNED[2 * bits(type)]

    def call(a: Array, b: Array) -> Array:
        return wide(a.view(read), b.view(read)).view(write)

    return Semantics(quiet(call), (raw(type), raw(type)), (_doubled(type),))


def multiply_add(half: str, type: str) -> Semantics:
    """mad.lo, mad.hi."""
    product = typed(PRODUCTS[half], type)
    kind = raw(type)
    return Semantics(quiet(lambda a, b, c: product(a, b) + c), (kind,) * 3, (kind,))


def multiply_add_saturated() -> Semantics:
    """mad.hi.sat.s32."""
    call = widened(lambda a, b, c: ((a * b) >> np.int64(32)) + c, "s32")
    return Semantics(call, ("b32",) * 3, ("b32",))


def multiply_add_wide(type: str) -> Semantics:
    """mad.wide: c and the result are twice as wide as the factors."""
    product = multiply_wide(type).call
    sources = (raw(type), raw(type), _doubled(type))
    return Semantics(quiet(lambda a, b, c: product(a, b) + c), sources, (_doubled(type),))


def _product24(half: str, type: str) -> Call:
    """Bits 31:0 or 47:16 of the product of the low 24 bits."""
    read = number(type)

    def call(a: Array, b: Array) -> Array:
        x, y = ((v << np.uint32(8)).view(read).astype(np.int64) >> np.int64(8) for v in (a, b))
        product: Array = x * y
        return (product >> np.int64(0 if half == "lo" else 16)).astype(np.uint32)

    return call


def multiply24(half: str, type: str) -> Semantics:
    """mul24."""
    return Semantics(_product24(half, type), ("b32", "b32"), ("b32",))


def multiply_add24(half: str, type: str) -> Semantics:
    """mad24."""
    product = _product24(half, type)
    return Semantics(quiet(lambda a, b, c: product(a, b) + c), ("b32",) * 3, ("b32",))


def multiply_add24_saturated() -> Semantics:
    """mad24.hi.sat.s32."""
    product = _product24("hi", "s32")
    add = widened(np.add, "s32")
    return Semantics(lambda a, b, c: add(product(a, b), c), ("b32",) * 3, ("b32",))


def _carrying(sign: int) -> Call:
    """a + b + carry, or a - b - borrow, with what it carries out."""

    def call(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
        one = carry.astype(a.dtype)
        if sign > 0:
            partial = a + b
            total = partial + one
            return total, (partial < a) | (total < partial)
        partial = a - b
        total = partial - one
        return total, (a < b) | (partial < one)

    return call


NO_CARRY = np.zeros(1, bool)


def _extended(call: Call, sources: tuple[str, ...], kind: str, reads: bool, cc: bool) -> Semantics:
    """An instruction of extended precision: the carry is the last source and the last result."""

    def run(*values: Array) -> Any:
        total, carry = call(*values) if reads else call(*values, NO_CARRY)
        return (total, carry) if cc else total

    carry_in = ("pred",) if reads else ()
    carry_out = ("pred",) if cc else ()
    return Semantics(quiet(run), sources + carry_in, (kind, *carry_out), carry=(reads, cc))


def carrying(sign: int, reads: bool) -> Any:
    """The builder of add.cc, addc, sub.cc and subc."""

    def build(type: str, cc: bool = True) -> Semantics:
        kind = raw(type)
        return _extended(_carrying(sign), (kind, kind), kind, reads, cc)

    return build


def multiply_carrying(reads: bool) -> Any:
    """The builder of mad.cc and madc: the carry is that of the addition."""

    def build(half: str, type: str, cc: bool = True) -> Semantics:
        product, add, kind = typed(PRODUCTS[half], type), _carrying(1), raw(type)

        def call(a: Array, b: Array, c: Array, carry: Array) -> Any:
            return add(product(a, b), c, carry)

        return _extended(call, (kind,) * 3, kind, reads, cc)

    return build


def sad(type: str) -> Semantics:
    """c + |a - b|."""
    return Semantics(quiet(typed(distance, type)), (raw(type),) * 3, (raw(type),))


def _dot(width: int, atype: str, btype: str, half: int) -> Call:
    """c plus the dot product of the 8-bit parts of b with the parts of a of that width."""
    parts = 32 // width

    def part(x: Array, kind: str, size: int, place: int) -> Array:
        unsigned: Array = (x >> np.uint32(size * place)).astype(UNSIGNED[size])
        return (unsigned.view(SIGNED[size]) if kind == "s32" else unsigned).astype(np.int64)

    def call(a: Array, b: Array, c: Array) -> Array:
        total: Array = c.astype(np.int64)
        for place in range(parts):
            total = total + part(a, atype, width, place) * part(b, btype, 8, place + half)
        return total.astype(np.uint32)

    return call


def dot4(atype: str, btype: str) -> Semantics:
    """dp4a: four 8-bit products."""
    return Semantics(_dot(8, atype, btype, 0), ("b32",) * 3, ("b32",))


def dot2(half: str, atype: str, btype: str) -> Semantics:
    """dp2a: two products of 16 by 8 bits, with the lower or upper bytes of b."""
    return Semantics(_dot(16, atype, btype, 0 if half == "lo" else 2), ("b32",) * 3, ("b32",))


ROWS = (
    Row(f"add type={INTEGERS}|u16x2|s16x2", binary("add")),
    Row("add sat s32", saturated("add")),
    Row(f"sub type={INTEGERS}", binary("sub")),
    Row("sub sat s32", saturated("sub")),
    Row(f"mul half=lo|hi type={INTEGERS}", multiply),
    Row("mul wide type=u16|u32|s16|s32", multiply_wide),
    Row(f"mad half=lo|hi type={INTEGERS}", multiply_add),
    Row("mad hi sat s32", multiply_add_saturated),
    Row("mad wide type=u16|u32|s16|s32", multiply_add_wide),
    Row("mul24 half=lo|hi type=u32|s32", multiply24),
    Row("mad24 half=lo|hi type=u32|s32", multiply_add24),
    Row("mad24 hi sat s32", multiply_add24_saturated),
    Row("add cc type=u32|s32|u64|s64", carrying(1, False)),
    Row("addc cc? type=u32|s32|u64|s64", carrying(1, True)),
    Row("sub cc type=u32|s32|u64|s64", carrying(-1, False)),
    Row("subc cc? type=u32|s32|u64|s64", carrying(-1, True)),
    Row("mad half=lo|hi cc type=u32|s32|u64|s64", multiply_carrying(False)),
    Row("madc half=lo|hi cc? type=u32|s32|u64|s64", multiply_carrying(True)),
    Row(f"div type={INTEGERS}", binary("div")),
    Row(f"rem type={INTEGERS}", binary("rem")),
    Row("neg type=s16|s32|s64", unary("neg")),
    Row("abs type=s16|s32|s64", unary("abs")),
    Row(f"min type={INTEGERS}|u16x2|s16x2", binary("min")),
    Row(f"max type={INTEGERS}|u16x2|s16x2", binary("max")),
    Row("min relu type=s16x2|s32", lambda type: binary("min")(type, relu=True)),
    Row("max relu type=s16x2|s32", lambda type: binary("max")(type, relu=True)),
    Row(f"sad type={INTEGERS}", sad),
    Row("dp4a atype=u32|s32 btype=u32|s32", dot4),
    Row("dp2a half=lo|hi atype=u32|s32 btype=u32|s32", dot2),
)
