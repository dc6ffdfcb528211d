"""Declared structure of sums: the order of their additions, their accumulator, and the gauge of rounded weights.

An `AnyOrder` is every tree through which no term makes more than `depth` additions. `Chunks`, `Mma` and `Tree` fix more
and are tighter: over 4096 terms any order is within 4095 u sum|terms|, chunks of 16 within about 16 u of the running sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from contract import formats
from contract.endpoints import Array, to_f32
from contract.errors import DeclarationError


@dataclass(frozen=True)
class AnyOrder:
    """Any tree of at most `depth` additions a term (all but one of the terms, where None)."""

    depth: int | None = None


@dataclass(frozen=True)
class Chunks:
    """Chunks of `size` terms added to the running sum in order; inside a chunk any tree of at most `depth`."""

    size: int
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DeclarationError(f"Chunks(size={self.size}); a chunk has at least one term")


@dataclass(frozen=True)
class Mma:
    """A matrix engine: `k` exact products and the running sum, aligned to the largest exponent, truncated, added.

    `guard` bits are kept below the accumulator's last one. It is 0 unless measured on the device in question.
    """

    k: int
    guard: int = 0

    def __post_init__(self) -> None:
        if self.k < 1 or self.guard < 0:
            raise DeclarationError(f"Mma(k={self.k}, guard={self.guard}); k >= 1 and guard >= 0")


@dataclass(frozen=True)
class Tree:
    """One tree, executed: 'sequential', or 'pairwise' (adjacent pairs, an odd one carried to the next level).

    Attributes:
        fused: 'yes', 'no' or 'either', whether a sequential product and its addition are one rounding.
        accumulator: the format that every partial sum is rounded to.
        products: the format that every product is rounded to before it is added; None: fp32's own.
    """

    kind: str
    fused: str = "no"
    accumulator: str = "fp32"
    products: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("sequential", "pairwise"):
            raise DeclarationError(f"Tree({self.kind!r}); use 'sequential' or 'pairwise'")
        if self.fused not in ("yes", "no", "either"):
            raise DeclarationError(f"Tree(fused={self.fused!r}); use 'yes', 'no' or 'either'")
        for fmt in (self.accumulator, self.products or self.accumulator):
            formats.get(fmt)
        if self.products is not None and self.fused != "no":
            raise DeclarationError(
                f"Tree(products={self.products!r}, fused={self.fused!r}); a product that is rounded is not fused"
            )


Order = AnyOrder | Chunks | Mma | Tree


@dataclass(frozen=True)
class Accumulator:
    """The format in which a sum runs.

    Attributes:
        name: fp32, fp16, bf16, int32, or wN: N bits that are truncated, with the exponents of fp32.
        bits: bits of the significand.
        least: exponent of the smallest positive value.
        normal: exponent of the smallest normal one.
        overflow: magnitudes from here on round to infinity.
        truncates: whether it drops bits rather than round to nearest.
    """

    name: str
    bits: int
    least: int
    normal: int
    overflow: float
    truncates: bool = False

    @property
    def u(self) -> float:
        """Largest relative error of one rounding."""
        return float(2.0 ** ((1 if self.truncates else 0) - self.bits))

    @property
    def exact_bits(self) -> int:
        """Sums of multiples of q are exact up to 2^exact_bits q."""
        return self.bits - 1 if self.truncates else self.bits

    def tiny(self, flush: bool) -> float:
        """What one underflowing step may lose: t."""
        return float(2.0 ** (self.normal if flush else self.least))

    def round(self, z: Array) -> Array:
        """Float64 values rounded to the accumulator's format."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.rounded(z)

    def rounded(self, z: Array) -> Array:
        """The same where the caller has told NumPy to keep silent: a step of a sum costs less than to say so."""
        if self.truncates:
            return self.truncate(z)
        if self.name == "fp32":
            return to_f32(z)
        if self.name == "fp16":
            return z.astype(np.float16).astype(np.float64)
        return np.asarray(formats.round_to(z, self.name))

    def truncate(self, z: Array) -> Array:
        """Float64 values with the bits below the accumulator's last one dropped."""
        with np.errstate(over="ignore", invalid="ignore"):
            _, exponent = np.frexp(z)
            unit = np.ldexp(1.0, np.maximum(exponent - self.bits, self.least))
            cut = np.trunc(z / unit) * unit
            cut = np.where(np.abs(cut) >= self.overflow, np.copysign(np.inf, z), cut)
        return np.where(np.isfinite(z), cut, z)


FP32 = Accumulator("fp32", 24, -149, -126, float.fromhex("0x1.ffffffp127"))
_ACCUMULATORS = {
    "fp32": FP32,
    "fp16": Accumulator("fp16", 11, -24, -14, 65520.0),
    "bf16": Accumulator("bf16", 8, -133, -126, float.fromhex("0x1.ffp127")),
    # integers below the overflow are sums of whole numbers in float64, too
    "int32": Accumulator("int32", 53, 0, 0, 2.0**31),
}


def accumulator(name: str) -> Accumulator:
    """The accumulator of that name: fp32, fp16, bf16, int32, or wN with N significand bits (2 to 24)."""
    if name in _ACCUMULATORS:
        return _ACCUMULATORS[name]
    if name.startswith("w") and name[1:].isdigit() and 2 <= int(name[1:]) <= 24:
        return Accumulator(name, int(name[1:]), -149, -126, FP32.overflow, truncates=True)
    raise DeclarationError(f"accumulator {name!r}; use fp32, fp16, bf16, int32, or w2 to w24")


@dataclass(frozen=True)
class Gauge:
    """The maximum that a weight is rounded against.

    Attributes:
        kind: 'final', the row's; 'running', up to the end of the key's block; 'any', unknown.
        block: keys per block of a running gauge.
        split: keys per split, each with a running maximum of its own; 0 for one.
    """

    kind: str
    block: int = 0
    split: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("final", "running", "any"):
            raise DeclarationError(f"Gauge({self.kind!r}); use 'final', 'running' or 'any'")
        if (self.kind == "running") != (self.block > 0) or (self.split and not self.block):
            raise DeclarationError(f"{self}: a running gauge has a block, no other has")
        if self.split and self.split % self.block:
            raise DeclarationError(f"{self}: a split is a whole number of blocks")

    def blocks(self, keys: int) -> list[slice]:
        """The stretches of keys that share one maximum."""
        step = self.block or keys
        ends = {0, keys, *range(0, keys, step), *(range(0, keys, self.split) if self.split else ())}
        cuts = sorted(ends)
        return [slice(a, b) for a, b in pairwise(cuts)]


FINAL, ANY = Gauge("final"), Gauge("any")


def running(block: int, split: int = 0) -> Gauge:
    """The running maximum of key blocks."""
    return Gauge("running", block, split)
