"""Blocks of 2 x 2 patches joined to one row: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.patch_merge import MERGE
from contract.references.patch_merge import patch_merge as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: no two values alike in a strip of up to 2^15, so that each place is told from the others."""
    return {"x": full_significands(rng, (shape["rows"], MERGE, shape["wide"], shape["d"]))}


def strips(rows: int, blocks: int, d: int) -> dict[str, int]:
    """`rows` strips of `blocks` blocks."""
    return {
        "rows": rows, "two": MERGE, "wide": MERGE * blocks, "d": d,
        "blocks": blocks, "merged": MERGE * MERGE * d,
    }  # fmt: skip


def inner(blocks: int, d: int) -> dict[str, int]:
    """Such strips, their number left out."""
    return {dim: size for dim, size in strips(1, blocks, d).items() if dim != "rows"}


patch_merge = register(
    Contract(
        name="patch_merge",
        family="vision",
        summary="blocks of 2 x 2 patches joined to one row, bit for bit",
        reference=reference,
        operands=(tensor("x", "rows two wide d"), output("out", "rows blocks merged")),
        profiles=(
            Profile("moved", {}, keeps_subnormals=True, users="Qwen3-VL, Qwen3.5 in transformers"),
        ),
        row_dims=("rows",),
        # Qwen3-VL: 1024 columns; 256 patches are eight strips of eight blocks
        shapes=(strips(1, 8, 1024), strips(8, 8, 1024)),
        awkward=(strips(3, 1, 1), strips(2, 5, 37), strips(1, 1, 129)),
        stress=(inner(4, 8), inner(1, 3), inner(3, 17)),
        exact=exact_rows,
        exact_shapes=(inner(4, 8), inner(1, 33)),
        invariant=("batch", "position", "launch", "layout"),
        rules={
            "two is 2": lambda s: s["two"] == MERGE,
            "wide = 2 blocks": lambda s: s["wide"] == MERGE * s["blocks"],
            "merged = 4 d": lambda s: s["merged"] == MERGE * MERGE * s["d"],
        },
    )
)


@implementation("patch_merge", name="torch", profile="moved")
def patch_merge_torch(x: Tensor) -> Tensor:
    """One permutation of (strip, row, block, column, d)."""
    rows, two, wide, d = x.shape
    blocks = x.reshape(rows, two, wide // MERGE, MERGE, d).permute(0, 2, 1, 3, 4)
    # a strip of one block is in order already: without a copy the result would be the input's memory
    copied = blocks.clone(memory_format=torch.contiguous_format)
    return copied.view(rows, wide // MERGE, two * MERGE * d)
