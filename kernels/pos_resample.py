"""A learned table of positions resampled to a grid of patches: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.grids import block_order
from contract.lazy import lazy
from contract.references.pos_resample import pos_resample as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

FOUR = 4


def axis_taps(size: int, side: int, align_corners: bool = True) -> tuple[Any, Any]:
    """(taps, weights), each (size, 2): the two entries of a table of `side` that every position of an axis lies between.

    src = i (side - 1) / (size - 1) with align_corners, so that both ends are kept, else (i + 1/2) side / size - 1/2; in fp32.
    A tap beyond the end counts with weight 0 and is the last entry; without align_corners the ends repeat.
    """
    if size < 1 or side < 1:
        raise ValueError(f"axis_taps(size={size}, side={side}); both are at least 1")
    index = np.arange(size, dtype=np.float32)
    if align_corners:
        source = index * np.float32(side - 1) / np.float32(max(size - 1, 1))
    else:
        half = np.float32(0.5)
        source = (index + half) * np.float32(side) / np.float32(size) - half
    low = np.floor(source)
    taps = low.astype(np.int64)[:, None] + np.arange(2)
    distance = np.abs((source - low)[:, None] - np.arange(2, dtype=np.float32))
    weights = np.float32(1) - distance
    return np.clip(taps, 0, side - 1), weights


def bilinear_taps(
    rows: int, columns: int, side: int, *, align_corners: bool = True, merge: int = 1
) -> tuple[Any, Any]:
    """(taps int32, weights fp32), each (rows columns, 4), for a grid of patches and a table of side x side entries.

    Taps are (low row, low column), (low, high), (high, low), (high, high); a weight is the product of those of its axes.
    Patches come row by row, or in blocks of merge x merge.
    """
    row_taps, row_weights = axis_taps(rows, side, align_corners)
    column_taps, column_weights = axis_taps(columns, side, align_corners)
    order = block_order(rows, columns, merge)
    r, c = order // columns, order % columns
    taps = row_taps[r][:, :, None] * side + column_taps[c][:, None, :]
    weights = row_weights[r][:, :, None] * column_weights[c][:, None, :]
    return taps.reshape(-1, FOUR).astype(np.int32), weights.reshape(-1, FOUR)


def products_of_parts(part: Any) -> Any:
    """(..., 4) weights of fractions (..., 2) along rows and columns."""
    sides = np.stack([1.0 - part, part], -1)
    return (sides[..., 0, :, None] * sides[..., 1, None, :]).reshape(*part.shape[:-1], FOUR)


def typical_weights(rng: Any, shape: tuple[int, ...]) -> Any:
    """Products of fractions, as a grid that does not divide the table has them."""
    return products_of_parts(rng.random((*shape[:-1], 2)))


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: fractions of an eighth, so that products of 8 bits and their sums have at most 16; corners are among
    them, and tables whose neighbours cancel."""
    rows, entries, d = shape["rows"], shape["entries"], shape["d"]
    side = math.isqrt(entries)
    low = rng.integers(0, side - 1, (rows, 2))
    corner = (low[:, :1] * side + low[:, 1:]) + np.array([0, 1, side, side + 1])
    table = full_significands(rng, (entries, d)) * np.exp2(rng.integers(-2, 3, (entries, 1)))
    return {
        "table": table,
        "taps": corner,
        "weights": products_of_parts(rng.integers(0, 8, (rows, 2)) / 8.0),
        "hidden": full_significands(rng, (rows, d)) / 2.0,
    }


def sized(**shape: int) -> dict[str, int]:
    """The shape with its four taps."""
    return {**shape, "four": FOUR}


pos_resample = register(
    Contract(
        name="pos_resample",
        family="vision",
        summary="a table of positions resampled with four weighted taps a patch, and added to the patches",
        reference=reference,
        operands=(
            tensor("table", "entries d"),
            tensor("taps", "rows four", "int32", below="entries"),
            tensor("weights", "rows four", "fp32", typical=typical_weights),
            tensor("hidden", "rows d", when={"adds": ("yes",)}),
            output("out", "rows d", in_place_of="hidden"),
        ),
        parameters={"adds": ("yes", "no")},
        profiles=(
            Profile(
                "each",
                {"position": "bf16", "out": "bf16"},
                users="Qwen3-VL, Qwen3.5 in transformers",
            ),
            Profile(
                "fused",
                {"position": None, "out": "bf16"},
                when={"adds": ("yes",)},
                users="fused kernels: the positions are added in fp32",
            ),
        ),
        row_dims=("rows",),
        column_dim="d",
        # Qwen3-VL's table is 48 x 48 of 1024 columns: all entries appear with a tile of the columns, all columns with few.
        shapes=(
            sized(rows=1, entries=49, d=1024),
            sized(rows=64, entries=49, d=1024),
            sized(rows=256, entries=2304, d=32),
        ),
        awkward=(sized(rows=3, entries=9, d=1), sized(rows=35, entries=16, d=37)),
        stress=(sized(entries=16, d=16), sized(entries=49, d=5), sized(entries=4, d=65)),
        exact=exact_rows,
        exact_shapes=(
            sized(entries=25, d=16),
            sized(entries=4, d=8),
            sized(entries=2304, d=32),
            sized(entries=9, d=257, rows=16),
        ),
        freedoms={"sum": "any order of four terms: a proof, Higham section 4.2"},
        rules={"four is 4": lambda s: s["four"] == FOUR},
    )
)


@implementation("pos_resample", name="torch", profile=("each", "fused"))
def pos_resample_torch(
    table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor | None = None, *, profile: str
) -> Tensor:
    """Four gathered rows, weighted in fp32."""
    total = (table[taps.long()].float() * weights[:, :, None]).sum(1)
    if hidden is None:
        return total.to(table.dtype)
    if profile == "each":
        return hidden + total.to(table.dtype)
    return (hidden.float() + total).to(table.dtype)
