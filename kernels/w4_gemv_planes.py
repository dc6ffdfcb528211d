"""Vectors of int16 codes times a four-bit weight, exact in each block: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.packing import checked_scales, nibbles_of, pack
from contract.kernels.w4_gemv import random_words, weight_scales
from contract.lazy import lazy
from contract.references.w4_gemv_planes import BLOCK, TOP
from contract.references.w4_gemv_planes import w4_gemv_planes as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

RULES = {
    "words = k / 8": lambda s: 8 * s["words"] == s["k"],
    "blocks = k / 128": lambda s: BLOCK * s["blocks"] == s["k"],
}


def sized(**shape: int) -> dict[str, int]:
    """The shape with its numbers of words and blocks."""
    return {**shape, "words": shape["k"] // 8, "blocks": shape["k"] // BLOCK}


#: Codes at which planes go wrong: the ends of int16, hi = +-128, lo = +-128, and the codes beside them.
EDGES = (32_767, 32_640, 32_639, -32_768, -32_640, 128, -128, 0x1280, 0x127F, 255)


def full_codes(rng: Any, rows: int, k: int) -> Any:
    """Odd codes of 14 bits in the first half of each block, their opposites in the second half.

    Even rows: opposites but for 1 at a few places, so that where both halves have the same q the running sum of q a
    passes 2^24 and the total has few bits. Odd rows hold EDGES.
    """
    size = (rows, k // BLOCK, BLOCK // 2)
    first = 2 * rng.integers(1 << 13, 16_000, size) + 1
    beside = rng.random(size) < 0.1
    a = np.concatenate([first, -first - beside], -1).reshape(rows, k)
    places = rng.permuted(np.tile(np.arange(k), (rows, 1)), axis=1)[1::2, : len(EDGES)]
    np.put_along_axis(a[1::2], places, np.tile(EDGES, (len(places), 1)), 1)
    return a


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: any codes, zero points 0 and 15 among them, scales that are powers of two.

    Every other output has large q, the same in both halves of a block; one in eight large q in the first half only, so
    that sums of the high plane pass 2^16 and totals 2^24.
    """
    n, k, half = shape["n"], shape["k"], BLOCK // 2
    zeros = rng.integers(0, 16, (n, shape["blocks"]))
    zeros[0::4], zeros[1::4] = 0, 15
    q = rng.integers(0, 16, (n, shape["blocks"], BLOCK))
    q[0::2] = 15 - q[0::2] // 3
    q[0::2, :, half:] = q[0::2, :, :half]
    q[3::8] = rng.integers(0, 2, q[3::8].shape)
    q[3::8, :, :half] += 14
    scales = np.exp2(rng.integers(-14, -10, (n, 1)) + rng.integers(0, 2, zeros.shape))
    return {
        "a": full_codes(rng, shape["rows"], k).astype(np.float64),
        "words": pack(q.reshape(n, k), 4).astype(np.float64),
        "scales": scales,
        "zeros": zeros.astype(np.float64),
    }


w4_gemv_planes = register(
    Contract(
        name="w4_gemv_planes",
        family="linear",
        summary="vectors of int16 codes times a four-bit weight in two int8 planes, exact in blocks of 128",
        reference=reference,
        operands=(
            tensor("a", "rows k", "int16"),
            tensor("words", "n words", "int32", typical=random_words),
            tensor("scales", "n blocks", "fp32", typical=weight_scales, finite=True),
            tensor("zeros", "n blocks", "uint4"),
            output("out", "rows n"),
        ),
        parameters={"low": ("signed", "unsigned")},
        profiles=(
            Profile("once", {"out": "bf16"}, users="Qwen3-VL W4A16 decoding on int8 arrays"),
            Profile(
                "half",
                {"out": "fp16"},
                {"scales": "fp16", "out": "fp16"},
                when={"low": ("signed",)},
                users="the same with fp16 scales and streams",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # rows of a weight of Qwen3-VL 2B, as in w4_gemv
        shapes=(sized(rows=1, n=256, k=2048), sized(rows=4, n=64, k=6144)),
        awkward=(
            sized(rows=1, n=1, k=128),
            sized(rows=3, n=5, k=384),
            sized(rows=5, n=67, k=640),
        ),
        # enough outputs that the 200-bit audit, which costs a microsecond a weight, is done before the wide shapes
        stress=(sized(n=50, k=128), sized(n=50, k=128), sized(n=50, k=256)),
        exact=exact_rows,
        exact_shapes=(
            sized(n=48, k=128, rows=16),
            sized(n=24, k=384, rows=8),
            sized(n=32, k=1024, rows=4),
        ),
        rules=RULES,
        freedoms={"blocks": "any order of the sum: a proof, Higham section 4.2"},
    )
)


# ---- torch

#: Outputs of one stretch of the table: wider ones touch more memory pages than the processor keeps addresses of.
TILE = 64
#: Inputs that are added in fp32: 32 * 15 * 32768 = 15,728,640 is below 2^24, so that every order is exact.
BAG = 32


@dataclass(frozen=True)
class PlaneWeight:
    """A weight as a table of four-bit rows for torch's embedding bags: made once, called for every vector.

    A bag's sum, weighted by its activations, is a product with 32 inputs of packed codes; both planes at once, as an
    fp32 product holds q (256 hi + lo) exactly.

    Attributes:
        table: (tiles k, TILE / 2 + 4) uint8, a tile's codes of one input, then an fp16 scale of 1 and a bias of 0.
        scales, zeros: (tiles, blocks, TILE) fp32 and int32.
        index, offsets: the rows of every bag, and where each bag begins.
        n: outputs.
    """

    table: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    index: torch.Tensor
    offsets: torch.Tensor
    n: int

    @staticmethod
    def prepare(words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> PlaneWeight:
        """Repack a weight, one tile of outputs at a time."""
        n, k = scales.shape[0], 8 * words.shape[1]
        tiles = -(-n // TILE)
        table = torch.zeros(tiles, k, TILE // 2 + 4, dtype=torch.uint8)
        # 1.0 in fp16 is 0x3C00
        table[..., TILE // 2 + 1] = 0x3C
        for part, rows in zip(table, words.split(TILE), strict=True):
            codes = torch.zeros(k, TILE, dtype=torch.uint8)
            codes[:, : len(rows)] = nibbles_of(rows).t()
            part[:, : TILE // 2] = codes[:, 0::2] | codes[:, 1::2] << 4
        return PlaneWeight(
            table.flatten(0, 1),
            _by_tile(scales.float(), tiles),
            _by_tile(zeros.int(), tiles),
            torch.arange(tiles * k, dtype=torch.int32),
            torch.arange(0, tiles * k, BAG, dtype=torch.int32),
            n,
        )

    def __call__(self, a: torch.Tensor) -> torch.Tensor:
        """Codes (rows, k) -> fp32 (rows, n)."""
        return torch.stack([self._row(row) for row in a])

    def _row(self, a: torch.Tensor) -> torch.Tensor:
        tiles, blocks, _ = self.scales.shape
        bags: torch.Tensor = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(
            self.table,
            self.index,
            self.offsets,
            per_sample_weights=a.float().repeat(tiles),
        )
        sums = bags.view(tiles, blocks, BLOCK // BAG, TILE).int().sum(2, dtype=torch.int32)
        totals = a.view(blocks, BLOCK).sum(-1, dtype=torch.int32)
        exact = sums - self.zeros * totals[:, None]
        return (exact.float() * self.scales).sum(1).flatten()[: self.n]


def _by_tile(x: torch.Tensor, tiles: int) -> torch.Tensor:
    """(n, blocks) -> (tiles, blocks, TILE), zeros beyond n."""
    n, blocks = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, 0, tiles * TILE - n))
    return padded.reshape(tiles, TILE, blocks).transpose(1, 2).contiguous()


@implementation("w4_gemv_planes", name="torch", profile=("once", "half"))
def w4_gemv_planes_torch(
    a: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    low: str,
    profile: str,
) -> torch.Tensor:
    """Exact sums of 32 inputs in fp32, of blocks in int32; then one fp32 product and sum a block."""
    checked_scales(scales, a.shape[1], BLOCK)
    held = a.clamp(max=TOP) if low == "signed" else a
    out = PlaneWeight.prepare(words, scales, zeros)(held)
    return out.to(torch.bfloat16 if profile == "once" else torch.float16)
