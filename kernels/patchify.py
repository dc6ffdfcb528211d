"""An image cut into patches: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.grids import block_order
from contract.lazy import lazy
from contract.references.patchify import MERGE
from contract.references.patchify import patchify as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

# SigLIP So400m's; 16 in Gemma 4 and Qwen3-VL, which cut in the same way
SIDE = 14


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: each pixel has a value of its own, so that each place is told from the others."""
    size = tuple(shape[dim] for dim in ("rows", "channels", "high", "wide"))
    return {"image": rng.permutation(int(np.prod(size))).reshape(size) + 0.5}


def sized(rows: int, channels: int, high: int, wide: int) -> dict[str, int]:
    """Images with the number of their patches and the length of these."""
    return {
        "rows": rows, "channels": channels, "high": high, "wide": wide,
        "patches": (high // SIDE) * (wide // SIDE), "k": channels * SIDE * SIDE,
    }  # fmt: skip


patchify = register(
    Contract(
        name="patchify",
        family="vision",
        summary="an image cut into patches, bit for bit",
        reference=reference,
        operands=(
            tensor("image", "rows channels high wide", "fp32"),
            output("out", "rows patches k", "fp32"),
        ),
        scalars=(Scalar("patch", (float(SIDE),)),),
        parameters={
            "grid": ("raster", "blocks"),
            "vector": ("row_col_channel", "channel_row_col"),
        },
        profiles=(
            Profile(
                "moved",
                {},
                keeps_subnormals=True,
                users="SigLIP (raster), Gemma 4 (raster, row_col_channel), Qwen3-VL (blocks, channel_row_col)",
            ),
        ),
        row_dims=("rows",),
        # SigLIP So400m/14-384: 27 x 27 patches, the last six rows and columns of pixels are ignored
        shapes=(sized(2, 3, 56, 84), sized(1, 3, 384, 384)),
        awkward=(sized(1, 3, 14, 14), sized(3, 1, 45, 55), sized(2, 4, 29, 71)),
        stress=(sized(8, 3, 28, 43), sized(8, 1, 15, 29), sized(4, 2, 42, 28)),
        exact=exact_rows,
        exact_shapes=(sized(2, 3, 28, 42), sized(1, 1, 71, 43)),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("patchify", name="torch", profile="moved")
def patchify_torch(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """One permutation of (image, channel, patch row, row, patch column, column).

    Raises:
        ValueError: a side that is no whole number of pixels, or none.
    """
    if not 1.0 <= patch < math.inf or patch != int(patch):
        raise ValueError(f"patch {patch!r}; a patch's side is a whole number of pixels, 1 or more")
    side = int(patch)
    images, channels, high, wide = image.shape
    rows, columns = high // side, wide // side
    cut = image[:, :, : rows * side, : columns * side]
    cut = cut.reshape(images, channels, rows, side, columns, side)
    places = (0, 2, 4, 3, 5, 1) if vector == "row_col_channel" else (0, 2, 4, 1, 3, 5)
    # a copy even where the order is that of the image already
    moved = cut.permute(places).clone(memory_format=torch.contiguous_format)
    out = moved.view(images, rows * columns, channels * side * side)
    if grid == "blocks":
        return out[:, torch.from_numpy(block_order(rows, columns, MERGE))]
    return out
