"""Vectors times an eight-bit weight: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.packing import checked_scales
from contract.kernels.w4_gemv import (
    CHUNK,
    DOT,
    LARGEST_SCALE,
    VECTORISED,
    Int4Weight,
    packed_beside,
)
from contract.lazy import lazy
from contract.references.w8_gemv import BLOCK
from contract.references.w8_gemv import w8_gemv as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def weight_scales(rng: Any, shape: tuple[int, ...]) -> Any:
    """Scales of trained weights: some 0.03 wide, in blocks of about 127 codes to either side."""
    return rng.uniform(0.0001, 0.0006, shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: all terms, of planes too, are integers whose magnitudes add up to less than 2^24.

    |16 hi| + lo is at most |q| + 30. Up to 96 inputs the scales have full significands and x is +-1 or +-3. Longer rows
    have x of 8 bits, scales that are powers of two, and every second row's second half is the first with its sign
    changed, but for 32 last columns: running sums are large and the result is small.
    """
    n, k, rows = shape["n"], shape["k"], shape["rows"]
    codes = rng.integers(-128, 128, (n, k))
    codes[:, ::16] = rng.choice([-128, -127, -16, -1, 0, 15, 16, 127], codes[:, ::16].shape)
    if k <= 96:
        x = rng.choice([-3.0, -1.0, 1.0, 3.0], (rows, k))
        scales = np.abs(full_significands(rng, (n, k // BLOCK)))
    else:
        half = (k - BLOCK) // 2
        x = full_significands(rng, (rows, k))
        x[:, half : 2 * half] = x[:, :half]
        codes[1::2, :half] = rng.integers(-127, 128, codes[1::2, :half].shape)
        codes[1::2, half : 2 * half] = -codes[1::2, :half]
        scales = np.ones((n, k // BLOCK))
    return {
        "x": x * np.exp2(rng.integers(-4, 4, (rows, 1))),
        "codes": codes.astype(np.float64),
        "scales": scales * np.exp2(rng.integers(-18, -6, (n, 1))),
    }


w8_gemv = register(
    Contract(
        name="w8_gemv",
        family="linear",
        summary="vectors times a weight of int8 codes with a scale for each block of 32 inputs",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("codes", "n k", "int8"),
            tensor("scales", "n blocks", typical=weight_scales, finite=True),
            output("out", "rows n"),
        ),
        options={"split": ("whole", "planes")},
        profiles=(
            Profile(
                "kept",
                {"out": "bf16"},
                options={"split": "whole"},
                users="decoding kernels that hold the weight in fp32 registers",
            ),
            Profile(
                "planes",
                {"out": "bf16"},
                options={"split": "planes"},
                users="two products with four-bit planes, such as torch's int4 product",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # the inputs of SmolLM2's layers, a few of their outputs: those do not depend on each other, and all 49,152 of its
        # head would take minutes to judge
        shapes=(
            {"rows": 4, "n": 48, "k": 576, "blocks": 18},
            {"rows": 1, "n": 128, "k": 1536, "blocks": 48},
        ),
        awkward=(
            {"rows": 1, "n": 1, "k": 32, "blocks": 1},
            {"rows": 3, "n": 5, "k": 96, "blocks": 3},
            {"rows": 5, "n": 35, "k": 160, "blocks": 5},
        ),
        stress=(
            {"n": 50, "k": 32, "blocks": 1},
            {"n": 50, "k": 64, "blocks": 2},
            {"n": 50, "k": 128, "blocks": 4},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"n": 48, "k": 96, "blocks": 3, "rows": 8},
            {"n": 40, "k": 384, "blocks": 12, "rows": 4},
        ),
        rules={"blocks = k / 32": lambda s: BLOCK * s["blocks"] == s["k"]},
        freedoms={"dot": DOT},
    )
)


# ---- torch


@dataclass(frozen=True)
class Int8Weight:
    """A weight of int8 codes as two planes of four bits side by side: made once, called for every vector.

    q = 16 hi + lo: a row of 2 k codes, hi + 8 with the scale 16 s, then lo with the scale s and the offset 8 s. Torch's
    int4 product holds (code - 8) scale + offset, 16 hi s and lo s, exactly in fp32.

    Attributes:
        planes: the weight (n, 2 k), as many bytes as the codes.
    """

    planes: Int4Weight

    @staticmethod
    def prepare(codes: torch.Tensor, scales: torch.Tensor) -> Int8Weight:
        """Repack a weight; scales beyond LARGEST_SCALE have no product with 128.

        Raises:
            ValueError: a scale that is not finite or too large, or another number of them.
        """
        checked_scales(scales, codes.shape[1], BLOCK)
        if bool((scales.abs() > LARGEST_SCALE).any()):
            raise ValueError(f"a scale above {LARGEST_SCALE:g}; the planes' sums need 128 times it")
        # two codes a byte, the first in the low bits
        high, low = (codes >> 4) + 8, codes & 15
        pairs = torch.cat((high, low), 1).view(torch.uint8).unflatten(1, (-1, 2))
        words = (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch.int32)
        steps = torch.cat((16 * scales, scales), 1)
        offset = torch.cat((torch.zeros_like(scales), 8 * scales), 1)
        return Int8Weight(Int4Weight.prepare(words, steps, offset=offset))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, k) bf16 -> (rows, n) bf16."""
        return self.planes(torch.cat((x, x), 1))


@implementation("w8_gemv", name="torch", profile="kept")
def w8_gemv_torch(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A few rows of the weight are unpacked at a time."""
    checked_scales(scales, x.shape[1], BLOCK)
    return in_chunks(x, codes, scales)


@implementation("w8_gemv", name="torch", profile="planes")
class W8GemvPlanes:
    """torch's product of packed four-bit codes where it keeps their weight in fp32, else planes unpacked in chunks."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        checked_scales(scales, codes.shape[1], BLOCK)
        huge = scales.abs().amax(1) > LARGEST_SCALE
        self.packed = None
        if torch.backends.cpu.get_cpu_capability() in VECTORISED:
            self.packed = Int8Weight.prepare(codes, scales.masked_fill(huge[:, None], 0.0))
        else:
            huge = torch.ones_like(huge)
        #: Rows that torch's product does not take.
        self.rows = huge.nonzero()[:, 0]
        self.codes, self.scales = codes[self.rows], scales[self.rows]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return packed_beside(x, self.packed, self.rows, self._in_chunks)

    def _in_chunks(self, x: torch.Tensor) -> torch.Tensor:
        return in_chunks(torch.cat((x, x), 1), self.codes, self.scales, planes=True)


def in_chunks(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, planes: bool = False
) -> torch.Tensor:
    """The product with a few rows of the weight unpacked at a time."""
    wide = x.float()
    parts = []
    for q, s in zip(codes.split(CHUNK), scales.split(CHUNK), strict=True):
        digits = (q >> 4 << 4, q & 15) if planes else (q,)
        parts.append(wide @ torch.cat([weight_of(digit, s) for digit in digits], 1).t())
    return torch.cat(parts, 1).to(x.dtype)


def weight_of(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """q s in fp32, (n, k)."""
    n, blocks = scales.shape
    return (codes.reshape(n, blocks, -1).float() * scales.float()[..., None]).reshape(n, -1)
