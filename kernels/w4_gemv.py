"""Vectors times a four-bit weight: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.packing import checked_scales, nibbles_of, pack
from contract.lazy import lazy
from contract.references.w4_gemv import w4_gemv as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

SYMMETRIC, ASYMMETRIC = {"block": ("32",)}, {"block": ("128",)}
AFFINE = {"block": ("32",), "offsets": ("yes",)}
NO_OFFSETS = "a weight with zero points has no offsets"
DOT = "any order of the sum: a proof, Higham section 3.1"
#: Sizes that hold whatever the block: eight codes fill a word, and inputs are whole blocks.
RULES = {
    "words = k / 8": lambda s: 8 * s["words"] == s["k"],
    "groups = k / 32": lambda s: 32 * s["groups"] == s["k"],
    "blocks = k / 128": lambda s: 128 * s["blocks"] == s["k"],
}


def sized(**shape: int) -> dict[str, int]:
    """The shape with its numbers of words, groups of 32 and blocks of 128."""
    k = shape["k"]
    return {**shape, "words": k // 8, "groups": k // 32, "blocks": k // 128}


def random_words(rng: Any, shape: tuple[int, ...]) -> Any:
    """Words of which every nibble takes every value."""
    return rng.integers(-(2**31), 2**31, shape).astype(np.float64)


def weight_scales(rng: Any, shape: tuple[int, ...]) -> Any:
    """Scales of trained weights: some 0.02 wide, in blocks of about 8 codes to either side."""
    return rng.uniform(0.001, 0.006, shape)


def weight_offsets(rng: Any, shape: tuple[int, ...]) -> Any:
    """Offsets of trained weights: a block's middle lies a few steps from zero."""
    return 0.008 * rng.standard_normal(shape, dtype=np.float32)


def exact_codes(rng: Any, n: int, k: int, block: str, mirrored: bool) -> tuple[Any, Any]:
    """Codes and zero points of rows: zero points 0, 15 and others in turn.

    With `mirrored` every second row's second half is the first with its sign changed, but for 32 last columns: running
    sums are large and the result is small, so that an accumulator that rounds shows.
    """
    groups = k // int(block)
    zeros = np.full((n, groups), 8)
    if block == "128":
        zeros = rng.integers(0, 16, (n, groups))
        zeros[0::4], zeros[2::4] = 0, 15
    codes = rng.integers(0, 16, (n, k))
    if mirrored:
        half = (k - 32) // 2
        zeros[1::2] = rng.integers(6, 10, (len(zeros[1::2]), 1))
        middle = zeros[1::2, :1]
        codes[1::2] = middle + rng.integers(-6, 7, (len(middle), k))
        codes[1::2, half : 2 * half] = 2 * middle - codes[1::2, :half]
    return codes, zeros


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: all products are integers whose magnitudes add up to less than 2^24.

    Up to 384 inputs the scales have full significands and x has 3 bits: w has 12 or 13. Longer rows have x of 8 bits,
    scales that are powers of two, and mirrored halves, of which an offset is the zero point's.
    """
    n, k, block = shape["n"], shape["k"], parameters["block"]
    long = k > 384
    codes, zeros = exact_codes(rng, n, k, block, long)
    x = full_significands(rng, (shape["rows"], k), 8 if long else 3)
    size = (n, 1 if long else k // int(block))
    scales = np.ones(size) if long else np.abs(full_significands(rng, size))
    if long:
        half = (k - 32) // 2
        x[:, half : 2 * half] = x[:, :half]
        scales = np.broadcast_to(scales, (n, k // int(block)))
    power = np.exp2(rng.integers(-12, 0, (n, 1)))
    # numbers of 8 bits, up to 2040 as products with a code are, so that w has 12 bits; 6 bits where x has 8
    offset = full_significands(rng, scales.shape, 6 if long else 8)
    offset *= 1.0 if long else np.exp2(rng.integers(0, 4, scales.shape))
    if long:
        offset[1::2] = 8 - (codes[1::2, :1] + codes[1::2, half : half + 1]) // 2
    return {
        "x": x * np.exp2(rng.integers(-4, 4, (len(x), 1))),
        "words": pack(codes, 4).astype(np.float64),
        "scales": scales * power,
        "zeros": zeros.astype(np.float64),
        "offset": offset * power,
    }


w4_gemv = register(
    Contract(
        name="w4_gemv",
        family="linear",
        summary="vectors times a weight of four-bit codes with a scale for each block of inputs",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("words", "n words", "int32", typical=random_words),
            tensor("scales", "n groups", typical=weight_scales, finite=True, when=SYMMETRIC),
            tensor("scales", "n blocks", typical=weight_scales, finite=True, when=ASYMMETRIC),
            tensor("zeros", "n blocks", "uint4", when=ASYMMETRIC),
            tensor("offset", "n groups", typical=weight_offsets, finite=True, when=AFFINE),
            output("out", "rows n"),
        ),
        parameters={"block": ("32", "128"), "offsets": ("no", "yes")},
        profiles=(
            Profile(
                "kept",
                {"offset": None, "weight": None, "out": "bf16"},
                unless={**ASYMMETRIC, "offsets": ("yes",)},
                users="decoding kernels that hold the weight in fp32 registers; torch's int4 product where z is 8",
                vacuous={"offsets=yes,block=128": NO_OFFSETS},
            ),
            Profile(
                "dequantised",
                {"offset": None, "weight": "bf16", "out": "bf16"},
                when={**SYMMETRIC, "offsets": ("no",)},
                users="AWQ checkpoints run through compressed-tensors: a bf16 weight, then a bf16 product",
            ),
            Profile(
                "offset",
                {"offset": "bf16", "weight": None, "out": "bf16"},
                when={**ASYMMETRIC, "offsets": ("no",)},
                users="torch._weight_int4pack_mm (tinygemm), HQQ: zero points held as bf16 numbers",
                vacuous={"offsets=yes": NO_OFFSETS},
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # the inputs of SigLIP's and Qwen3-VL 2B's layers, a few of their outputs: those do not depend on each other, and
        # all of them would take a minute to judge
        shapes=(sized(rows=4, n=48, k=1152), sized(rows=1, n=256, k=2048)),
        awkward=(
            sized(rows=1, n=1, k=128),
            sized(rows=3, n=5, k=384),
            sized(rows=5, n=35, k=640),
        ),
        # enough outputs that the 200-bit audit, which costs a microsecond a weight, is done before the wide shapes
        stress=(sized(n=50, k=128), sized(n=50, k=128), sized(n=50, k=128), sized(n=50, k=256)),
        exact=exact_rows,
        exact_shapes=(
            sized(n=48, k=384, rows=8),
            sized(n=60, k=640, rows=4),
        ),
        rules=RULES,
        freedoms={"dot": DOT},
    )
)


# ---- torch

#: Rows of a weight that are unpacked at a time where nothing multiplies packed codes: they stay in the cache.
CHUNK = 64
#: torch's AVX2 product forms -8 s, which must not overflow.
LARGEST_SCALE = 2.0**120
#: Processors on which torch's int4 product holds the weight in fp32 and rounds its sum to nearest.
VECTORISED = ("AVX2", "AVX512")


@dataclass(frozen=True)
class Int4Weight:
    """A weight in the layout of torch's int4 product: made once, called for every vector.

    Attributes:
        table: the codes, still two in a byte.
        scales: (groups, n, 2) bf16, scale and offset of each group.
        group: inputs of one scale.
        n: outputs; the table has a multiple of 16.
    """

    table: torch.Tensor
    scales: torch.Tensor
    group: int
    n: int

    @staticmethod
    def prepare(
        words: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        offset: torch.Tensor | None = None,
    ) -> Int4Weight:
        """Repack a weight; zero points become offsets (8 - z) s, rounded to bf16."""
        n, groups = scales.shape
        filler = (0, 0, 0, -n % 16)
        pad = torch.nn.functional.pad
        words, scales = pad(words, filler), pad(scales, filler)
        offsets = torch.zeros_like(scales) if offset is None else pad(offset, filler)
        if zeros is not None:
            offsets = (8 - pad(zeros, filler).float()) * scales.float()
        pairs = torch.stack((scales, offsets.to(scales.dtype)), -1).transpose(0, 1).contiguous()
        convert = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        # the conversion reads one code in four bytes: 1024 rows at a time keep that small
        parts = [convert(nibbles_of(part).int(), 1) for part in words.split(1024)]
        return Int4Weight(torch.cat(parts), pairs, 8 * words.shape[1] // groups, n)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, k) bf16 -> (rows, n) bf16."""
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        out: torch.Tensor = product(x.contiguous(), self.table, self.group, self.scales)
        return out[:, : self.n]


def packed_beside(
    x: torch.Tensor,
    packed: Callable[[torch.Tensor], torch.Tensor] | None,
    rows: torch.Tensor,
    chunks: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """torch's product, where there is one, with the rows that it does not take computed in chunks."""
    if packed is None:
        return chunks(x)
    out = packed(x)
    if len(rows):
        out[:, rows] = chunks(x)
    return out


@implementation("w4_gemv", name="torch", profile=("kept", "dequantised", "offset"))
class W4Gemv:
    """torch's product of packed codes where it rounds as the profile says, else rows unpacked in small chunks."""

    def __init__(
        self,
        words: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        offset: torch.Tensor | None = None,
        *,
        block: str,
        profile: str,
    ) -> None:
        k = 8 * words.shape[1]
        checked_scales(scales, k, int(block))
        if offset is not None:
            checked_scales(offset, k, int(block), "offset")
        self.packed = None
        left = torch.ones(len(words), dtype=torch.bool)
        if multiplies_packed(profile, block):
            self.packed = Int4Weight.prepare(words, scales, zeros, offset)
            left = scales.abs().amax(1) > LARGEST_SCALE
            if offset is not None:
                left |= offset.abs().amax(1) > LARGEST_SCALE
        #: Rows that torch's product does not take.
        self.rows = left.nonzero()[:, 0]
        rest = (None if x is None else x[self.rows] for x in (words, scales, zeros, offset))
        self.rest, self.profile = tuple(rest), profile

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return packed_beside(x, self.packed, self.rows, self._in_chunks)

    def _in_chunks(self, x: torch.Tensor) -> torch.Tensor:
        words, scales, zeros, offset = self.rest
        return in_chunks(x, words, scales, zeros, self.profile, offset)


def in_chunks(
    x: torch.Tensor,
    words: Any,
    scales: Any,
    zeros: torch.Tensor | None,
    profile: str,
    offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product with a few rows of the weight unpacked at a time."""
    wide = x.float()
    parts = []
    for first in range(0, len(words), CHUNK):
        at = slice(first, first + CHUNK)
        some, moved = (None if a is None else a[at] for a in (zeros, offset))
        weight = unpacked(words[at], scales[at], some, profile, moved)
        parts.append(wide @ weight.t())
    return torch.cat(parts, 1).to(x.dtype)


def multiplies_packed(profile: str, block: str) -> bool:
    """Whether torch's int4 product rounds like this profile here: it adds an offset in bf16, or none."""
    fitting = profile == "offset" or (profile == "kept" and block == "32")
    return fitting and torch.backends.cpu.get_cpu_capability() in VECTORISED


def unpacked(
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    profile: str,
    offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weight in fp32, (n, k), rounded as the profile says."""
    n, groups = scales.shape
    codes = nibbles_of(words).reshape(n, groups, -1).float()
    scale = scales.float()[..., None]
    zero = 8.0 if zeros is None else zeros.float()[..., None]
    if profile == "offset":
        weight = (codes - 8.0) * scale + ((8.0 - zero) * scale).to(scales.dtype).float()
    else:
        weight = (codes - zero) * scale
    if offset is not None:
        weight = weight + offset.float()[..., None]
    if profile == "dequantised":
        weight = weight.to(scales.dtype).float()
    return weight.reshape(n, -1)
