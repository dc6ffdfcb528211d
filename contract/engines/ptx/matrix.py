"""mma.sync: the products of a warp's fragments. PTX ISA 9.7.14, matrix fragments for mma.

Lane l holds parts of row or column g = l / 4 at t = l mod 4; which, is said by the functions below, one for each figure.
Integer sums are exact modulo 2^32 or saturated. The order and the width of the sum of floats are left open by the ISA:

- skew 0: the sum of exact products and the accumulator in float64, rounded once;
- skew -1: what `contract.orders.Mma(k)` admits: all k products and the accumulator are aligned to the largest exponent among them,
  truncated to the accumulator's last bit there, added exactly and truncated to the result;
- skew 1: the same in two steps of k / 2.

An fp64 sum is a chain of fused multiply-adds in the order of k; skew -1 turns the order round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.formats import FORMATS
from contract.engines.ptx.opcode import Array, Row, Semantics, alike, quiet
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


def _elements(registers: tuple[Array, ...], kind: str) -> Array:
    """(warps, 32, elements) of the parts of a lane's registers, lowest first, as numbers."""
    stacked = np.stack(registers, axis=-1)
    if kind in ("s8", "u8"):
        return stacked.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    if kind == "s32":
        return stacked.view(np.int32).astype(np.int64)
    if kind in ("f16", "bf16"):
        return FORMATS[kind].value(stacked.view(np.uint16)).astype(np.float64)
    if kind == "tf32":
        return (stacked & TF32_MASK).view(np.float32).astype(np.float64)
    return FORMATS[kind].value(stacked).astype(np.float64)


def _source(places: tuple[Array, Array], columns: int) -> Array:
    """Of each element of a matrix, row by row, which of the lanes' elements it is."""
    return np.argsort((places[0] * columns + places[1]).reshape(-1))


def _matrix(elements: Array, source: Array, rows: int, columns: int) -> Array:
    """(warps, rows, columns) from the elements of the lanes."""
    flat = elements.reshape(elements.shape[0], -1)
    return flat.take(source, axis=1).reshape(-1, rows, columns)


@functools.cache
def _flat_c(shape: Shape) -> Array:
    """Of each (lane, element) its place in C and D, row by row."""
    rows, columns = places_c(shape)
    return np.asarray(rows * shape.n + columns)


def _registers(matrix: Array, shape: Shape, kind: str) -> tuple[Array, ...]:
    """Raw results (warps, m, n) as the registers of the lanes."""
    elements = matrix.reshape(matrix.shape[0], -1).take(_flat_c(shape), axis=1)
    if IN_REGISTER[kind] == 2:
        elements = elements.view(np.uint32)
    return tuple(np.ascontiguousarray(elements[..., i]) for i in range(elements.shape[-1]))


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
    for part in parts:
        total = fmt.value(fmt.narrow(aligned_sum(part, total, bits), "rz")).astype(np.float64)
    return fmt.narrow(total, "rn")


def _whole_warps(active: Array) -> None:
    """A warp runs mma.sync with all of its lanes or not at all."""
    some = active.any(axis=-1)
    if (some & ~active.all(axis=-1)).any():
        raise PtxFault("mma.sync in a warp of which some lanes are inactive")


def _counts(shape: Shape, kinds: tuple[str, str, str]) -> tuple[int, int, int]:
    """Registers of A, B and C in one lane."""
    sizes = (shape.m * shape.k, shape.k * shape.n, shape.m * shape.n)
    a, b, c = (size // 32 // IN_REGISTER[kind] for size, kind in zip(sizes, kinds, strict=True))
    return a, b, c


def _fragments(shape: Shape, kinds: tuple[str, str, str]) -> Callable[..., tuple[Array, ...]]:
    """From all source registers to the matrices A, B and C."""
    counts = _counts(shape, kinds)
    cut = counts[0], counts[0] + counts[1]
    of_a = _source(places_a(shape, IN_REGISTER[kinds[0]]), shape.k)
    of_b = _source(places_b(shape, IN_REGISTER[kinds[1]]), shape.n)
    of_c = _source(places_c(shape), shape.n)

    def read(*sources: Array) -> tuple[Array, ...]:
        shaped = alike(*sources)
        a, b, c = shaped[: cut[0]], shaped[cut[0] : cut[1]], shaped[cut[1] :]
        return (
            _matrix(_elements(a, kinds[0]), of_a, shape.m, shape.k),
            _matrix(_elements(b, kinds[1]), of_b, shape.k, shape.n),
            _matrix(_elements(c, kinds[2]), of_c, shape.m, shape.n),
        )

    return read


def floats(shape: str, of: str, into: str) -> Semantics:
    """f16, bf16 or tf32 with fp32 or f16 accumulators."""
    size = Shape.parse(shape)
    read, counts = _fragments(size, (of, of, into)), _counts(size, (of, of, into))

    def call(*sources: Array, active: Array, skew: int = 0) -> tuple[Array, ...]:
        _whole_warps(active)
        a, b, c = read(*sources)
        return _registers(_float_sum(a, b, c, into, skew), size, into)

    return Semantics(
        quiet(call), ("b32",) * sum(counts), ("b32",) * counts[2], approximate=True, warp=True
    )


def integers(shape: str, atype: str, btype: str, satfinite: bool) -> Semantics:
    """Signed or unsigned bytes with 32-bit accumulators."""
    size = Shape.parse(shape)
    kinds = (atype, btype, "s32")
    read, counts = _fragments(size, kinds), _counts(size, kinds)

    def call(*sources: Array, active: Array) -> tuple[Array, ...]:
        _whole_warps(active)
        a, b, c = read(*sources)
        total = a @ b + c
        if satfinite:
            total = np.clip(total, -(2**31), 2**31 - 1)
        return _registers(total.astype(np.uint32), size, "s32")

    return Semantics(quiet(call), ("b32",) * sum(counts), ("b32",) * counts[2], warp=True)


def doubles() -> Semantics:
    """m8n8k4 of fp64."""
    size, kinds = Shape(8, 8, 4), ("f64", "f64", "f64")
    read, counts = _fragments(size, kinds), _counts(size, kinds)

    def call(*sources: Array, active: Array, skew: int = 0) -> tuple[Array, ...]:
        _whole_warps(active)
        a, b, total = read(*sources)
        for k in range(size.k)[:: -1 if skew < 0 else 1]:
            total = fused64(a[:, :, k, None], b[:, k, None, :], total)
        return _registers(FORMATS["f64"].narrow(total, "rn"), size, "f64")

    return Semantics(
        quiet(call), ("b64",) * sum(counts), ("b64",) * counts[2], approximate=True, warp=True
    )


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
