"""The number formats and their facts; `contract.formats` computes with them.

Sources: IEEE 754-2019; OCP 8-bit floating point (e4m3fn, e5m2); OCP microscaling formats
(e2m1, e8m0); Noune et al., 8-bit numerical formats for deep neural networks, 2022 (e4m3fnuz).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from contract.errors import DeclarationError

Mode: TypeAlias = Literal["nearest_even", "toward_zero", "down", "up", "half_away", "to_odd"]
Overflow: TypeAlias = Literal["inf", "nan", "saturate"]

MODES: tuple[Mode, ...] = ("nearest_even", "toward_zero", "down", "up", "half_away", "to_odd")


class UnknownFormat(DeclarationError):
    """A format name that FORMATS does not hold."""


@dataclass(frozen=True)
class Format:
    """The facts of one number format.

    Integer formats use the same fields with a spacing of 1. A scale has neither sign nor zero.
    """

    name: str
    bits: int  # width of one code; codes below 8 bits fill the low bits of a uint8
    precision: int  # significand bits with the hidden bit; value bits of an integer
    emin: int  # exponent of the smallest normal value
    max: float  # largest finite value that float64 holds
    lowest: float  # most negative finite value
    has_inf: bool
    has_nan: bool
    has_negative_zero: bool
    kind: Literal["float", "int", "scale"]
    overflow: Overflow  # what a value beyond the range becomes unless the caller says otherwise
    pad: int = 0  # unused low bits of a code (tf32 in a 32-bit word)

    @property
    def mantissa_bits(self) -> int:
        """Stored significand bits, without the hidden one."""
        return self.precision - 1

    @property
    def within_fp32(self) -> bool:
        """Whether fp32 holds every value (of the codes of integers, those that a reference computes with)."""
        return self.kind != "float" or (self.precision <= 24 and self.emin >= -126)

    @property
    def bias(self) -> int:
        """Exponent bias of the code."""
        return -self.emin if self.kind == "scale" else 1 - self.emin

    @property
    def tiny(self) -> float:
        """Smallest positive normal value."""
        return 2.0**self.emin

    @property
    def smallest(self) -> float:
        """Smallest positive value."""
        return 1.0 if self.kind == "int" else 2.0 ** (self.emin - self.mantissa_bits)

    @property
    def u(self) -> float:
        """Unit roundoff: half the spacing at 1, 2**-precision."""
        return 2.0**-self.precision

    @property
    def largest_code(self) -> int:
        """Code of the largest finite value, unpadded; the infinity, if any, is the next one."""
        if self.kind == "int":
            return int(self.max)
        exponent = int(np.frexp(self.max)[1]) - 1
        whole = int(self.max * 2.0 ** (self.mantissa_bits - exponent))
        # A normal significand carries its hidden bit into the exponent field.
        return ((exponent - self.emin) << self.mantissa_bits) + whole - (self.kind == "scale")

    @property
    def nan_code(self) -> int:
        """Code of the canonical quiet NaN: positive, the leading stored bit alone set."""
        if self.kind == "float" and not self.has_negative_zero:
            return 1 << (self.bits - 1)
        if not self.has_inf:
            return self.largest_code + 1
        return (self.largest_code + 1 + (1 << (self.mantissa_bits - 1))) << self.pad

    @cached_property
    def storage(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Unsigned NumPy type that holds one code."""
        return np.dtype(f"u{max(self.bits, 8) // 8}")


def _float(name: str, bits: int, precision: int, emin: int, top: str, **facts: Any) -> Format:
    largest = float.fromhex(top)
    fields: dict[str, Any] = {"has_inf": True, "has_nan": True, "has_negative_zero": True}
    fields["overflow"] = "inf"
    return Format(name, bits, precision, emin, largest, -largest, kind="float", **fields | facts)


def _int(name: str, bits: int, lowest: int, top: int) -> Format:
    precision = top.bit_length()
    # float64 cannot hold 2**63 - 1: the range of int64 ends at the largest float64 below it.
    largest = float(top >> (precision - 53) << (precision - 53)) if precision > 53 else float(top)
    facts = (False, False, False)
    return Format(name, bits, precision, 0, largest, float(lowest), *facts, "int", "saturate")


_FINITE: dict[str, Any] = {"has_inf": False, "overflow": "nan"}

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        f.name: f
        for f in (
            _float("fp64", 64, 53, -1022, "0x1.fffffffffffffp1023"),
            _float("fp32", 32, 24, -126, "0x1.fffffep127"),
            _float("tf32", 32, 11, -126, "0x1.ffcp127", pad=13),
            _float("bf16", 16, 8, -126, "0x1.fep127"),
            _float("fp16", 16, 11, -14, "0x1.ffcp15"),
            _float("e5m2", 8, 3, -14, "0x1.cp15"),
            _float("e4m3fn", 8, 4, -6, "0x1.cp8", **_FINITE),
            _float("e4m3fnuz", 8, 4, -7, "0x1.ep7", has_negative_zero=False, **_FINITE),
            _float("e2m1", 4, 2, 0, "0x1.8p2", has_inf=False, has_nan=False, overflow="saturate"),
            Format("e8m0", 8, 1, -127, 2.0**127, 2.0**-127, False, True, False, "scale", "nan"),
            _int("bool", 1, 0, 1),
            _int("uint4", 4, 0, 15),
            _int("uint8", 8, 0, 255),
            _int("int4", 4, -8, 7),
            _int("int8", 8, -128, 127),
            _int("int16", 16, -32768, 32767),
            _int("int32", 32, -(2**31), 2**31 - 1),
            _int("int64", 64, -(2**63), 2**63 - 1),
        )
    }
)


def get(fmt: str | Format) -> Format:
    """The format of that name; a Format is returned as it is."""
    if isinstance(fmt, Format):
        return fmt
    try:
        return FORMATS[fmt]
    except (KeyError, TypeError):
        known = ", ".join(FORMATS)
        raise UnknownFormat(f"format {fmt!r} is not known; known are {known}") from None


def policies(
    fmt: str | Format, mode: Mode, overflow: Overflow | None, infinity: Overflow | None
) -> tuple[Format, Overflow, Overflow]:
    """The format and what a value beyond its range and an infinity become, defaults filled in."""
    f = get(fmt)
    if mode not in MODES:
        known = ", ".join(MODES)
        raise DeclarationError(f"rounding mode {mode!r} is not known; known are {known}")
    overflow = overflow or f.overflow
    infinity = infinity or overflow
    for name, policy in (("overflow", overflow), ("infinity", infinity)):
        if policy not in ("inf", "nan", "saturate"):
            raise DeclarationError(f"{name} {policy!r} is not one of inf, nan, saturate")
        if policy == "inf" and not f.has_inf:
            raise DeclarationError(f"{name}='inf': {f.name} has no infinity; say nan or saturate")
    return f, overflow, infinity
