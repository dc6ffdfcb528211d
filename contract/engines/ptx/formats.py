"""Floats of PTX registers: from bits to values, and values rounded once into bits.

NaN results are canonical: 0x7fffffff (CUDA C++ Programming Guide, floating-point standard), 0x7fff in the halves
(PTX ISA 9.7.4, min and max), 0x7f in the 8-bit formats (9.7.9, cvt); in fp64 the 0xfff8000000000000 of CUDA's CUDART_NAN,
where the ISA leaves the payload open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.engines.ptx.opcode import UNSIGNED, Array

MODES: dict[str, formats.Mode] = {
    "rn": "nearest_even",
    "rz": "toward_zero",
    "rm": "down",
    "rp": "up",
    "rna": "half_away",
}
NAN32 = np.uint32(0x7FFFFFFF)
NAN64 = np.uint64(0xFFF8000000000000)
NAN16 = np.uint16(0x7FFF)
LEAST_NORMAL = np.float32(2.0**-126)
SIGN32, SIGN16 = np.uint32(0x80000000), np.uint16(0x8000)


@dataclass(frozen=True)
class Format:
    """A float type of PTX.

    Attributes:
        name: as PTX writes it.
        fmt: the same format in `contract.formats`.
        nan: bits of the canonical NaN.
        magnitude: the bits without the sign.
        normal: bits of the smallest normal value.
    """

    name: str
    fmt: str
    nan: Any
    magnitude: int
    normal: int

    @property
    def width(self) -> int:
        """Bits of a register of this type."""
        return int(8 * self.nan.dtype.itemsize)

    def value(self, raw: Array) -> Array:
        """The values: float64 of f64, else float32, which holds every narrower one."""
        if self.name in ("f32", "tf32"):
            return raw.view(np.float32)
        if self.name == "f64":
            return raw.view(np.float64)
        if self.name == "bf16":
            widened: Array = raw.astype(np.uint32) << np.uint32(16)
            return widened.view(np.float32)
        if self.name == "f16":
            return raw.view(np.float16).astype(np.float32)
        return formats.decode(raw, self.fmt).astype(np.float32)

    def flush(self, raw: Array) -> Array:
        """Subnormal values as zeros of the same sign."""
        unsigned = UNSIGNED[self.width]
        magnitude = raw & unsigned(self.magnitude)
        small = magnitude < unsigned(self.normal)
        if not small.any():
            return raw
        return np.where(small, raw & unsigned(~self.magnitude & (2**self.width - 1)), raw)

    def clean(self, raw: Array) -> Array:
        """NaNs made canonical."""
        unsigned = UNSIGNED[self.width]
        magnitude = raw & unsigned(self.magnitude)
        nan = magnitude > unsigned(_INFINITY[self.name])
        return np.where(nan, self.nan, raw) if nan.any() else raw

    def saturate(self, raw: Array) -> Array:
        """Clamped to [+0, 1]; NaN becomes +0. PTX ISA 9.7.3, .sat."""
        value = self.value(raw)
        one = self.narrow(np.ones(1), "rn")
        clamped = np.where(value > 0, np.where(value < 1, raw, one), UNSIGNED[self.width](0))
        return clamped

    def relu(self, raw: Array) -> Array:
        """Negative values as +0; NaN is canonical already."""
        value = self.value(raw)
        return np.where((value > 0) | np.isnan(value), raw, UNSIGNED[self.width](0))

    def narrow(self, exact: Array, mode: str, satfinite: bool = False) -> Array:
        """Float64 values, exact or rounded to odd, rounded once into bits."""
        if mode == "rn" and not satfinite and self.name in _NEAREST:
            return _NEAREST[self.name](exact)
        policy: formats.Overflow = "saturate" if satfinite else "inf"
        rounded = formats.round_to(exact, self.fmt, MODES[mode], policy, policy)
        code: Array = formats.encode(rounded, self.fmt)
        return np.where(np.isnan(rounded), self.nan, code.astype(UNSIGNED[self.width]))


def flushed(raw: Array) -> Array:
    """Subnormal fp32 values as zeros of the same sign."""
    return FORMATS["f32"].flush(raw)


def clean32(value: Array) -> Array:
    """The bits of fp32 values, NaN canonical."""
    raw = value.view(np.uint32)
    nan = np.isnan(value)
    return np.where(nan, NAN32, raw) if nan.any() else raw


def clean64(value: Array) -> Array:
    """The bits of fp64 values, NaN canonical."""
    raw = value.view(np.uint64)
    nan = np.isnan(value)
    return np.where(nan, NAN64, raw) if nan.any() else raw


def _nearest32(exact: Array) -> Array:
    return clean32(exact.astype(np.float32))


def _nearest16(exact: Array) -> Array:
    rounded = exact.astype(np.float16)
    raw = rounded.view(np.uint16)
    nan = np.isnan(exact)
    return np.where(nan, NAN16, raw) if nan.any() else raw


def _nearest_bf16(exact: Array) -> Array:
    """Through fp32: only where that lands on a tie of bf16 does its own rounding matter."""
    single = exact.astype(np.float32)
    raw = single.view(np.uint32)
    tie = (raw & np.uint32(0xFFFF)) == np.uint32(0x8000)
    if tie.any():
        lanes = np.nonzero(tie)
        had, true = np.abs(single[lanes]), np.abs(exact[lanes])
        raw[lanes] += (had < true).astype(np.uint32) - (had > true).astype(np.uint32)
    return bf16_of_f32(raw)


def bf16_of_f32(raw: Array) -> Array:
    """fp32 bits to bf16, to nearest even."""
    odd = (raw >> np.uint32(16)) & np.uint32(1)
    rounded = ((raw + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    nan = (raw & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, NAN16, rounded) if nan.any() else rounded


_NEAREST = {
    "f32": _nearest32,
    "f64": clean64,
    "f16": _nearest16,
    "bf16": _nearest_bf16,
}
_INFINITY = {
    "f64": 0x7FF0 << 48,
    "f32": 0x7F800000,
    "tf32": 0x7F800000,
    "f16": 0x7C00,
    "bf16": 0x7F80,
    "e5m2": 0x7C,
    "e4m3": 0x7E,
}
FORMATS = {
    "f64": Format("f64", "fp64", NAN64, 2**63 - 1, 1 << 52),
    "f32": Format("f32", "fp32", NAN32, 2**31 - 1, 1 << 23),
    "tf32": Format("tf32", "tf32", NAN32, 2**31 - 1, 1 << 23),
    "f16": Format("f16", "fp16", NAN16, 2**15 - 1, 1 << 10),
    "bf16": Format("bf16", "bf16", NAN16, 2**15 - 1, 1 << 7),
    "e4m3": Format("e4m3", "e4m3fn", np.uint8(0x7F), 2**7 - 1, 1 << 3),
    "e5m2": Format("e5m2", "e5m2", np.uint8(0x7F), 2**7 - 1, 1 << 2),
}
