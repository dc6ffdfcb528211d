"""Logic, shifts, fields of bits and bytes, moves. PTX ISA 9.7.1 (bit fields), 9.7.8 (logic and shift), 9.7.9 (prmt, mov)."""

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
    quiet,
    raw,
)

U32, U64 = np.uint32, np.uint64
NOTHING_FOUND = np.uint32(0xFFFFFFFF)
MOVED = "b16|b32|b64|u16|u32|u64|s16|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64"


def logic(call: Call, sources: int) -> Any:
    """The builder of a bitwise function of predicates or registers."""

    def build(type: str) -> Semantics:
        return Semantics(call, (raw(type),) * sources, (raw(type),))

    return build


def cnot(type: str) -> Semantics:
    """1 where the source is zero, else 0."""
    return Semantics(lambda a: (a == 0).astype(a.dtype), (raw(type),), (raw(type),))


def left(type: str) -> Semantics:
    """shl: amounts beyond the width give zero."""
    width, one = bits(type), UNSIGNED[bits(type)]

    def call(a: Array, n: Array) -> Array:
        if n.size == 1 and (by := n.item()) < width:
            return np.asarray(a << one(by))
        amount = np.minimum(n, width - 1).astype(one)
        shifted: Array = np.where(n < width, a << amount, one(0))
        return shifted

    return Semantics(call, (raw(type), "b32"), (raw(type),))


def right(type: str) -> Semantics:
    """shr: signed types repeat the sign; amounts beyond the width act as the width."""
    width = bits(type)
    unsigned, signed = UNSIGNED[width], SIGNED[width]

    def arithmetic(a: Array, n: Array) -> Array:
        shifted: Array = a.view(signed) >> np.minimum(n, width - 1).astype(signed)
        return shifted.view(unsigned)

    def logical(a: Array, n: Array) -> Array:
        if n.size == 1 and (by := n.item()) < width:
            return np.asarray(a >> unsigned(by))
        amount = np.minimum(n, width - 1).astype(unsigned)
        shifted: Array = np.where(n < width, a >> amount, unsigned(0))
        return shifted

    return Semantics(arithmetic if type[0] == "s" else logical, (raw(type), "b32"), (raw(type),))


def funnel(side: str, mode: str) -> Semantics:
    """shf: 32 bits of the shifted pair (b, a), of which a is the lower."""

    def call(a: Array, b: Array, n: Array) -> Array:
        amount = (n & U32(31) if mode == "wrap" else np.minimum(n, U32(32))).astype(U64)
        pair = a.astype(U64) | (b.astype(U64) << U64(32))
        shifted: Array = (pair << amount) >> U64(32) if side == "l" else pair >> amount
        return shifted.astype(U32)

    return Semantics(call, ("b32",) * 3, ("b32",))


# Every function of two bits by its table, whose bit 2 a + b is the result.
OF_TWO: tuple[Call, ...] = (
    lambda a, b: np.zeros_like(a & b),
    lambda a, b: ~(a | b),
    lambda a, b: ~a & b,
    lambda a, b: ~a,
    lambda a, b: a & ~b,
    lambda a, b: ~b,
    lambda a, b: a ^ b,
    lambda a, b: ~(a & b),
    lambda a, b: a & b,
    lambda a, b: ~(a ^ b),
    lambda a, b: b,
    lambda a, b: ~a | b,
    lambda a, b: a,
    lambda a, b: a | ~b,
    lambda a, b: a | b,
    lambda a, b: ~np.zeros_like(a & b),
)


def of_three(a: Array, b: Array, c: Array, table: int) -> Array:
    """The function of three bits whose table has the result at 4 a + 2 b + c."""
    without, given = (sum((table >> 2 * i + bit & 1) << i for i in range(4)) for bit in (0, 1))
    found: Array = OF_TWO[without](a, b)
    if given == without:
        return found
    turned = c if given == 15 - without else OF_TWO[given ^ without](a, b) & c
    mixed: Array = found ^ turned
    return mixed


def table_lookup(a: Array, b: Array, c: Array, lut: Array) -> Array:
    """lop3: bit i of the table is the result where (a, b, c) are the bits of i."""
    table = int(lut.flat[0]) & 0xFF
    if lut.size == 1 or (lut == lut.flat[0]).all():
        return of_three(a, b, c, table)
    found: Array = np.zeros(np.broadcast(a, b, c, lut).shape, U32)
    for i in range(8):
        x, y, z = a if i & 4 else ~a, b if i & 2 else ~b, c if i & 1 else ~c
        found = found | (x & y & z & -(lut >> U32(i) & U32(1)))
    return found


def lop3() -> Semantics:
    """lop3 of three registers and an immediate table, the last source."""
    return Semantics(quiet(table_lookup), ("b32",) * 4, ("b32",))


def lop3_combined(bool_op: str) -> Semantics:
    """lop3 with a predicate: (result != 0) combined with the last source."""
    combine = np.logical_or if bool_op == "or" else np.logical_and

    def call(a: Array, b: Array, c: Array, lut: Array, q: Array) -> tuple[Array, Array]:
        found = table_lookup(a, b, c, lut)
        return found, combine(found != 0, q)

    return Semantics(quiet(call), ("b32",) * 4 + ("pred",), ("b32", "pred"))


def extract(type: str) -> Semantics:
    """bfe: the field of c bits from bit b on; a signed one is filled with its highest bit in the register."""
    width, unsigned, signed = bits(type), UNSIGNED[bits(type)], SIGNED[bits(type)]

    def call(a: Array, b: Array, c: Array) -> Array:
        place, size = b & U32(0xFF), c & U32(0xFF)
        reach = np.minimum(place, width - 1).astype(unsigned)
        moved = np.where(place < width, a >> reach, unsigned(0))
        size_in = np.minimum(size, width).astype(unsigned)
        mask = _ones(size_in, width)
        field: Array = moved & mask
        if type[0] != "s":
            return field
        top = np.clip(place.astype(np.int64) + size - 1, 0, width - 1).astype(unsigned)
        sign = np.where(size > 0, (a.view(signed) >> top.astype(signed)) & signed(1), 0)
        return np.where(
            sign == 1, field & mask | ~_ones(_inside(place, size_in, width), width), field
        )

    return Semantics(quiet(call), (raw(type), "b32", "b32"), (raw(type),))


def _inside(place: Array, size: Array, width: int) -> Array:
    """How many bits of the field lie in the register."""
    inside: Array = np.clip(width - place.astype(np.int64), 0, size.astype(np.int64))
    return inside.astype(size.dtype)


def _ones(count: Array, width: int) -> Array:
    """As many ones, from the lowest bit on."""
    unsigned = UNSIGNED[width]
    amount = np.minimum(width - count.astype(np.int64), width - 1).astype(unsigned)
    ones: Array = np.where(count > 0, unsigned(2**width - 1) >> amount, unsigned(0))
    return ones


def insert(type: str) -> Semantics:
    """bfi: the low d bits of a over b from bit c on."""
    width, unsigned = bits(type), UNSIGNED[bits(type)]

    def call(a: Array, b: Array, c: Array, d: Array) -> Array:
        place, size = c & U32(0xFF), d & U32(0xFF)
        amount = np.minimum(place, width - 1).astype(unsigned)
        mask = _ones(np.minimum(size, width).astype(unsigned), width) << amount
        mask = np.where(place < width, mask, unsigned(0))
        inserted: Array = (b & ~mask) | ((a << amount) & mask)
        return inserted

    return Semantics(quiet(call), (raw(type), raw(type), "b32", "b32"), (raw(type),))


def highest(a: Array) -> Array:
    """The place of the highest one, -1 in zero."""
    width, value = 8 * a.dtype.itemsize, a
    place = np.zeros(a.shape, np.int64)
    step = width // 2
    while step:
        above = value >> a.dtype.type(step)
        place = place + np.where(above != 0, step, 0)
        value = np.where(above != 0, above, value)
        step //= 2
    return np.where(a == 0, -1, place)


def find_bit(type: str, shiftamt: bool = False) -> Semantics:
    """bfind: the highest bit that is not the sign, or by how much to shift it to the top."""
    width = bits(type)

    def call(a: Array) -> Array:
        if type[0] == "s":
            a = np.where(a.view(SIGNED[width]) < 0, ~a, a)
        place = highest(a)
        found = (width - 1 - place) if shiftamt else place
        return np.where(place < 0, NOTHING_FOUND, found.astype(U32))

    return Semantics(call, (raw(type),), ("b32",))


def leading_zeros(type: str) -> Semantics:
    """clz."""
    top = bits(type) - 1
    return Semantics(lambda a: (top - highest(a)).astype(U32), (raw(type),), ("b32",))


def population(type: str) -> Semantics:
    """popc."""
    return Semantics(lambda a: np.bitwise_count(a).astype(U32), (raw(type),), ("b32",))


def reverse(type: str) -> Semantics:
    """brev."""
    width, unsigned = bits(type), UNSIGNED[bits(type)]

    def call(a: Array) -> Array:
        step = 1
        while step < width:
            mask = unsigned((2**width - 1) // (2**step + 1))
            a = ((a & mask) << unsigned(step)) | ((a >> unsigned(step)) & mask)
            step *= 2
        return a

    return Semantics(call, (raw(type),), (raw(type),))


def nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """fns: the |offset|-th one from bit `base` on, upward or downward; offset 0 asks for the bit itself."""
    start, wanted = base.astype(np.int64), offset.view(np.int32).astype(np.int64)
    step = np.where(wanted < 0, -1, 1)
    left = np.where(wanted == 0, 1, np.abs(wanted))
    found = np.full(np.broadcast(mask, base, offset).shape, NOTHING_FOUND)
    for reach in range(32):
        place = start + reach * step
        inside = (place >= 0) & (place < 32) & ((wanted != 0) | (reach == 0))
        one = inside & ((mask.astype(np.int64) >> np.clip(place, 0, 31)) & 1 == 1)
        left = left - one
        found = np.where(one & (left == 0), place.astype(U32), found)
    return found


def fns() -> Semantics:
    """Find the n-th set bit."""
    return Semantics(quiet(nth_set), ("b32",) * 3, ("b32",))


# Which of the eight bytes of (b, a) each result byte is, lowest first, for control values 0 to 3. PTX ISA 9.7.9, prmt.
MODES: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
SELECTORS = {mode: np.array(choices, U32) for mode, choices in MODES.items()}


def _chosen(a: Array, b: Array, selectors: list[int]) -> Array:
    """Bytes of (b, a) by one choice for all lanes: bytes that move equally far are moved together."""
    groups: dict[tuple[bool, int], int] = {}
    for place, select in enumerate(selectors):
        move = 8 * (place - (select & 3))
        key = bool(select & 4), move
        groups[key] = groups.get(key, 0) | 0xFF << 8 * place
    found: Array = np.zeros(1, U32)
    for (second, move), mask in groups.items():
        word = b if second else a
        moved = word << U32(move) if move >= 0 else word >> U32(-move)
        found = found | (moved & U32(mask))
    return found


def _permuted(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Bytes of (b, a) by a choice for each lane."""
    pair = a.astype(U64) | (b.astype(U64) << U64(32))
    permuted: Array = np.zeros(np.broadcast(a, b, c).shape, U32)
    for place in range(4):
        select = SELECTORS[mode][c & U32(3), place] if mode else (c >> U32(4 * place)) & U32(15)
        byte = (pair >> ((select & U32(7)) << U32(3)).astype(U64)).astype(U32) & U32(0xFF)
        byte = np.where(select & U32(8), np.where(byte & U32(0x80), U32(0xFF), U32(0)), byte)
        permuted = permuted | (byte << U32(8 * place))
    return permuted


def permute(mode: str) -> Semantics:
    """prmt: bytes of (b, a) chosen by nibbles of c, whose highest bit asks for the byte's sign instead."""

    def call(a: Array, b: Array, c: Array) -> Array:
        control = int(c.flat[0])
        if (c.size == 1 or (c == c.flat[0]).all()) and not (control & 0x8888 and not mode):
            nibbles = (
                MODES[mode][control & 3] if mode else [control >> 4 * i & 15 for i in range(4)]
            )
            return np.broadcast_to(_chosen(a, b, list(nibbles)), np.broadcast(a, b, c).shape)
        return _permuted(a, b, c, mode)

    return Semantics(quiet(call), ("b32",) * 3, ("b32",))


def mask_of(mode: str) -> Semantics:
    """bmsk: b ones from bit a on."""

    def call(a: Array, b: Array) -> Array:
        place, size = (a & U32(31), b & U32(31)) if mode == "wrap" else (a, b)
        ones = _ones(np.minimum(size, 32), 32)
        mask: Array = np.where(place < 32, ones << np.minimum(place, U32(31)), U32(0))
        return mask

    return Semantics(call, ("b32",) * 2, ("b32",))


def extend(mode: str, type: str) -> Semantics:
    """szext: the low b bits of a, zero- or sign-extended."""

    def call(a: Array, b: Array) -> Array:
        size = (b & U32(31)) if mode == "wrap" else np.minimum(b, U32(32))
        mask = _ones(size, 32)
        sign = (a >> np.clip(size.astype(np.int64) - 1, 0, 31).astype(U32)) & U32(1)
        negative = (sign == 1) & (size > 0) & (type == "s32")
        return np.where(negative, a | ~mask, a & mask)

    return Semantics(quiet(call), ("b32",) * 2, ("b32",))


def move(type: str) -> Semantics:
    """mov from register to register."""
    return Semantics(lambda a: a, (raw(type),), (raw(type),))


def pack(width: int, count: int) -> Semantics:
    """mov of {a, b, ...} into one register: the first part is the lowest."""
    whole, part = UNSIGNED[width], width // count

    def call(*parts: Array) -> Array:
        packed: Array = parts[0].astype(whole)
        for place, value in enumerate(parts[1:], 1):
            packed = packed | (value.astype(whole) << whole(place * part))
        return packed

    return Semantics(call, (f"b{part}",) * count, (f"b{width}",))


def unpack(width: int, count: int) -> Semantics:
    """mov of one register into {a, b, ...}."""
    whole, part = UNSIGNED[width], width // count

    def call(a: Array) -> tuple[Array, ...]:
        return tuple((a >> whole(place * part)).astype(UNSIGNED[part]) for place in range(count))

    return Semantics(call, (f"b{width}",), (f"b{part}",) * count)


ROWS = (
    Row("and type=b16|b32|b64|pred", logic(np.bitwise_and, 2)),
    Row("or type=b16|b32|b64|pred", logic(np.bitwise_or, 2)),
    Row("xor type=b16|b32|b64|pred", logic(np.bitwise_xor, 2)),
    Row("not type=b16|b32|b64|pred", logic(np.invert, 1)),
    Row("cnot type=b16|b32|b64", cnot),
    Row("shl type=b16|b32|b64", left),
    Row("shr type=b16|b32|b64|u16|u32|u64|s16|s32|s64", right),
    Row("shf side=l|r mode=clamp|wrap b32", funnel),
    Row("lop3 b32", lop3),
    Row("lop3 bool_op=or|and b32", lop3_combined),
    Row("bfe type=u32|u64|s32|s64", extract),
    Row("bfi type=b32|b64", insert),
    Row("bfind shiftamt? type=u32|u64|s32|s64", find_bit),
    Row("brev type=b32|b64", reverse),
    Row("popc type=b32|b64", population),
    Row("clz type=b32|b64", leading_zeros),
    Row("fns b32", fns),
    Row("prmt b32 mode=f4e|b4e|rc8|ecl|ecr|rc16?", permute),
    Row("bmsk mode=clamp|wrap b32", mask_of),
    Row("szext mode=clamp|wrap type=u32|s32", extend),
    Row(f"mov type={MOVED}|pred", move),
)
