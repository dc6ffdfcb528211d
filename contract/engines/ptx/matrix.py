"""mma.sync: the products of a warp's fragments. PTX ISA 9.7.14, matrix fragments for mma.

Lane l holds parts of row or column g = l / 4 at t = l mod 4; which, is said by the functions below, one for each figure.
Integer sums are exact modulo 2^32 or saturated. The order and the width of the sum of floats are left open by the ISA:

- skew 0: the sum of exact products and the accumulator in float64, rounded once;
- skew -1: what `contract.orders.Mma(k)` admits: all k products and the accumulator are aligned to the largest exponent among them,
  truncated to the accumulator's last bit there, added exactly and truncated to the result; beyond its range that is an
  infinity, as nothing but .satfinite, which no float mma has, clamps a result;
- skew 1: the same in two steps of k / 2.

An fp64 sum is a chain of fused multiply-adds in the order of k; skew -1 turns the order round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.formats import FORMATS
from contract.engines.ptx.opcode import UNSIGNED, Array, Row, Semantics, alike, quiet
from contract.engines.ptx.rounding import fused64

LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4
TF32_MASK = np.uint32(0xFFFFE000)


@dataclass(frozen=True)
class Shape:
    """Rows, columns and depth of one instruction."""

    m: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From m16n8k8."""
        m, rest = text[1:].split("n")
        n, k = rest.split("k")
        return cls(int(m), int(n), int(k))


# Elements of A, B or C that one 32-bit register holds; fp64 has a register of 64 bits to itself.
IN_REGISTER = {"f64": 1, "f32": 1, "s32": 1, "tf32": 1, "f16": 2, "bf16": 2, "s8": 4, "u8": 4}


@functools.cache
def places_a(shape: Shape, per: int) -> tuple[Array, Array]:
    """Row and column in A of (lane, element): rows g and g + 8 by turns, then further along k."""
    count = shape.m * shape.k // 32
    i = np.arange(count)
    turns = shape.m // 8
    row = GROUP[:, None] + 8 * ((i // per) % turns)
    column = THREAD[:, None] * per + i % per + 4 * per * (i // (per * turns))
    return row, column


@functools.cache
def places_b(shape: Shape, per: int) -> tuple[Array, Array]:
    """Row (along k) and column in B of (lane, element)."""
    i = np.arange(shape.k * shape.n // 32)
    row = THREAD[:, None] * per + i % per + 4 * per * (i // per)
    return row, np.broadcast_to(GROUP[:, None], row.shape)


@functools.cache
def places_c(shape: Shape) -> tuple[Array, Array]:
    """Row and column in C and D of (lane, element)."""
    i = np.arange(shape.m * shape.n // 32)
    return GROUP[:, None] + 8 * (i // 2), THREAD[:, None] * 2 + i % 2


# what the parts of a register are, where they are no floats of contract.engines.ptx.formats
INTEGERS: dict[str, Any] = {"s8": np.int8, "u8": np.uint8, "s32": np.int32}


def _numbers(raw: Array, kind: str) -> Array:
    """The values of raw elements."""
    if kind in INTEGERS:
        whole: Array = raw.view(INTEGERS[kind]).astype(np.int64)
        return whole
    if kind == "tf32":
        raw = raw & TF32_MASK
    return FORMATS[kind].value(raw).astype(np.float64)


def _parts(registers: Array, kind: str) -> Array:
    """Registers (n, k, lanes) as their elements (n, k * lanes * elements of one), lowest first."""
    per = IN_REGISTER[kind]
    small = UNSIGNED[8 * registers.dtype.itemsize // per]
    parts: Array = registers.view(small).reshape(len(registers), -1)
    return parts


def _source(places: tuple[Array, Array], columns: int, per: int, warps: int) -> Array:
    """Of each element of the matrices of all warps, row by row, where it lies among `_parts`."""
    lane, element = np.divmod(
        np.argsort((places[0] * columns + places[1]).reshape(-1)), places[0].shape[1]
    )
    register, part = element // per, element % per
    first = 32 * np.arange(warps)[:, None]
    source: Array = ((register * 32 * warps + first + lane) * per + part).reshape(-1)
    return source


@functools.lru_cache(64)
def _sources(shape: Shape, kinds: tuple[str, str, str], warps: int) -> tuple[Array, Array, Array]:
    """The same of A, B and C."""
    per = [IN_REGISTER[kind] for kind in kinds]
    return (
        _source(places_a(shape, per[0]), shape.k, per[0], warps),
        _source(places_b(shape, per[1]), shape.n, per[1], warps),
        _source(places_c(shape), shape.n, per[2], warps),
    )


@functools.lru_cache(64)
def _into(shape: Shape, kind: str, warps: int) -> Array:
    """Of each element of the registers of D, as in `_parts`, its place in the matrices of all warps, row by row."""
    per = IN_REGISTER[kind]
    rows, columns = places_c(shape)
    flat = (rows * shape.n + columns).reshape(32, -1, per).transpose(1, 0, 2)
    first = shape.m * shape.n * np.arange(warps)[:, None, None]
    places: Array = (flat[:, None] + first).reshape(-1)
    return places


def aligned_sum(products: Array, addend: Array, bits: int) -> Array:
    """Exact products (..., k) and an addend (...), truncated at the unit of the largest one, added exactly."""
    terms = np.concatenate([products, addend[..., None]], axis=-1)
    plain = np.isfinite(terms).all(axis=-1)
    finite = np.where(plain[..., None], terms, 0.0)
    _, exponents = np.frexp(finite)
    largest = np.where(finite == 0, -(2**20), exponents).max(axis=-1, keepdims=True)
    unit = np.ldexp(1.0, np.maximum(largest - bits, -1000))
    total = (np.trunc(finite / unit) * unit).sum(axis=-1)
    summed: Array = np.where(plain, total, terms.sum(axis=-1))
    return summed


def _float_sum(a: Array, b: Array, c: Array, into: str, skew: int) -> Array:
    """Raw results (warps, m, n)."""
    fmt = FORMATS[into]
    if skew == 0:
        return fmt.narrow(a @ b + c, "rn")
    products = a[:, :, None, :] * np.swapaxes(b, 1, 2)[:, None, :, :]
    parts = np.split(products, 1 if skew < 0 else 2, axis=-1)
    total, bits = c, 24 if into == "f32" else 11
    beyond = np.ldexp(1.0, np.frexp(formats.get(fmt.fmt).max)[1])
    for part in parts:
        summed = aligned_sum(part, total, bits)
        total = fmt.value(fmt.narrow(summed, "rz")).astype(np.float64)
        over = np.abs(summed) >= beyond
        if over.any():
            total = np.where(over, np.copysign(np.inf, summed), total)
    return fmt.narrow(total, "rn")


def _whole_warps(active: Array) -> None:
    """A warp runs mma.sync with all of its lanes or not at all."""
    some = active.any(axis=-1)
    if (some & ~active.all(axis=-1)).any():
        raise PtxFault("mma.sync in a warp of which some lanes are inactive")


@dataclass(frozen=True)
class Product:
    """D = A B + C of several instructions of one shape.

    Attributes:
        kinds: the types of A, B and of C and D.
        total: from the matrices A, B, C, (products, rows, columns), and skew to the raw ones of D.
    """

    shape: Shape
    kinds: tuple[str, str, str]
    total: Callable[..., Array]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Registers of A, B and C in one lane."""
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        sizes = zip((m * k, k * n, m * n), self.kinds, strict=True)
        a, b, c = (size // 32 // IN_REGISTER[kind] for size, kind in sizes)
        return a, b, c

    def __call__(
        self, a: Array, b: Array, c: Array, of_a: Array, of_b: Array, skew: int = 0
    ) -> Array:
        """Registers of D (instructions, registers, lanes).

        Args:
            a, b: (matrices, registers, lanes): those that the instructions read, each once.
            c: the same of each instruction.
            of_a, of_b: of each instruction, which of them.
        """
        shape, warps = self.shape, c.shape[2] // 32
        sources = _sources(shape, self.kinds, warps)
        sizes = ((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n))
        left, right, addend = (
            _numbers(_parts(x, kind).take(source, axis=1), kind).reshape(len(x), warps, *size)
            for x, kind, source, size in zip((a, b, c), self.kinds, sources, sizes, strict=True)
        )
        every = (
            x.reshape(-1, *x.shape[2:]) for x in (left.take(of_a, 0), right.take(of_b, 0), addend)
        )
        raw = self.total(*every, skew=skew)
        found = raw.reshape(len(c), -1).take(_into(shape, self.kinds[2], warps), axis=1)
        return found.view(c.dtype).reshape(c.shape)


FIRST = np.zeros(1, np.int64)


def _semantics(
    shape: Shape,
    kinds: tuple[str, str, str],
    total: Callable[..., Array],
    approximate: bool = True,
) -> Semantics:
    """The instruction by itself, and what executes several."""
    product = Product(shape, kinds, total)
    ends = np.cumsum(product.counts)

    def call(*sources: Array, active: Array, skew: int = 0) -> tuple[Array, ...]:
        _whole_warps(active)
        every = np.stack([x.reshape(-1) for x in alike(*sources)])[None]
        a, b, c, _ = np.split(every, ends, axis=1)
        found = product(a, b, c, FIRST, FIRST, skew)
        return tuple(x.reshape(active.shape) for x in found[0])

    kind = "b64" if "f64" in kinds else "b32"
    return Semantics(
        quiet(call),
        (kind,) * int(ends[2]),
        (kind,) * product.counts[2],
        approximate=approximate,
        warp=True,
        product=product,
    )


def floats(shape: str, of: str, into: str) -> Semantics:
    """f16, bf16 or tf32 with fp32 or f16 accumulators."""

    def total(a: Array, b: Array, c: Array, skew: int) -> Array:
        return _float_sum(a, b, c, into, skew)

    return _semantics(Shape.parse(shape), (of, of, into), total)


def integers(shape: str, atype: str, btype: str, satfinite: bool) -> Semantics:
    """Signed or unsigned bytes with 32-bit accumulators."""

    def total(a: Array, b: Array, c: Array, skew: int) -> Array:
        found = a @ b + c
        if satfinite:
            found = np.clip(found, -(2**31), 2**31 - 1)
        return found.astype(np.uint32)

    return _semantics(Shape.parse(shape), (atype, btype, "s32"), total, approximate=False)


def doubles() -> Semantics:
    """m8n8k4 of fp64."""

    def total(a: Array, b: Array, c: Array, skew: int) -> Array:
        for k in range(a.shape[2])[:: -1 if skew < 0 else 1]:
            c = fused64(a[:, :, k, None], b[:, k, None, :], c)
        return FORMATS["f64"].narrow(c, "rn")

    return _semantics(Shape(8, 8, 4), ("f64", "f64", "f64"), total)


def _floats(of: str, into: str) -> Any:
    return lambda shape: floats(shape, of, into)


ROWS = (
    Row("mma sync aligned shape=m16n8k8|m16n8k16 row col f32 f16 f16 f32", _floats("f16", "f32")),
    Row("mma sync aligned shape=m16n8k8|m16n8k16 row col f16 f16 f16 f16", _floats("f16", "f16")),
    Row(
        "mma sync aligned shape=m16n8k8|m16n8k16 row col f32 bf16 bf16 f32",
        _floats("bf16", "f32"),
    ),
    Row("mma sync aligned shape=m16n8k4|m16n8k8 row col f32 tf32 tf32 f32", _floats("tf32", "f32")),
    Row(
        "mma sync aligned shape=m8n8k16|m16n8k16|m16n8k32 row col satfinite? s32"
        " atype=s8|u8 btype=s8|u8 s32",
        integers,
    ),
    Row("mma sync aligned m8n8k4 row col f64 f64 f64 f64", doubles),
)
