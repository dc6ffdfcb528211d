"""Planted patch cutters: other edges and orders, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.patchify import patchify_torch
from contract.lazy import lazy
from contract.references.patchify import MERGE

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

GRIDS = ("raster", "blocks")
VECTORS = ("row_col_channel", "channel_row_col")

# The other order of patches and the other order in a patch are planted automatically, as the other parameters.


@red("patchify", profile="moved", gate="shapes")
def border_cut_on_both_sides(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """What is left over is split between both edges."""
    top, left = (int(n % patch) // 2 for n in image.shape[2:])
    shifted = image[:, :, top:, left:] if top or left else image.flip(2)
    side = int(patch)
    high, wide = (n // side * side for n in image.shape[2:])
    return patchify_torch(shifted[:, :, :high, :wide], patch=patch, grid=grid, vector=vector)


@red("patchify", profile="moved", gate="stress", grid="raster", vector=VECTORS)
def squeezed_to_whole_patches(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """The image is resized so that no pixel is left over."""
    side = int(patch)
    size = [n // side * side for n in image.shape[2:]]
    smaller = torch.nn.functional.interpolate(image, size, mode="bilinear", align_corners=False)
    return patchify_torch(smaller.clone(), patch=patch, grid=grid, vector=vector)


@red("patchify", profile="moved", gate="shapes")
def patches_by_columns(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """The grid is read column by column, the pixels of a patch are right."""
    right = patchify_torch(image, patch=patch, grid="raster", vector=vector)
    rows = image.shape[2] // int(patch)
    turned: Tensor = right.unflatten(1, (rows, -1)).transpose(1, 2)
    return turned.flatten(1, 2)


@red("patchify", profile="moved", gate="shapes")
def pixels_transposed(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """Rows and columns of pixels in a patch are exchanged."""
    side = int(patch)
    out = patchify_torch(image, patch=patch, grid=grid, vector=vector)
    at = 2 if vector == "row_col_channel" else 3
    shape = (side, side, -1) if vector == "row_col_channel" else (-1, side, side)
    turned: Tensor = out.unflatten(2, shape).transpose(at, at + 1)
    return turned.flatten(2).contiguous()


@red("patchify", profile="moved", gate="shapes", grid="blocks", vector=VECTORS)
def blocks_by_columns(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """Inside a block the patches are read column by column."""
    side = int(patch)
    rows, columns = image.shape[2] // side, image.shape[3] // side
    places = sorted((r // MERGE, c // MERGE, c, r) for r in range(rows) for c in range(columns))
    index = torch.tensor([r * columns + c for _, _, c, r in places])
    return patchify_torch(image, patch=patch, grid="raster", vector=vector)[:, index]


@red("patchify", profile="moved", gate="shapes")
def colours_reversed(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """Blue, green, red."""
    return patchify_torch(image.flip(1), patch=patch, grid=grid, vector=vector)


@red("patchify", profile="moved", gate="shapes")
def through_bf16(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """The pixels pass through bf16."""
    return patchify_torch(image.bfloat16().float(), patch=patch, grid=grid, vector=vector)


@green("patchify", profile="moved", grid="raster", vector="channel_row_col")
def unfolded(image: Tensor, *, patch: float) -> Tensor:
    """torch's unfold, the first half of a convolution."""
    side = int(patch)
    return torch.nn.functional.unfold(image, side, stride=side).transpose(1, 2).contiguous()


@green("patchify", profile="moved", grid=GRIDS, vector=VECTORS)
def image_by_image(image: Tensor, *, patch: float, grid: str, vector: str) -> Tensor:
    """One image at a time."""
    return torch.cat(
        [patchify_torch(one[None], patch=patch, grid=grid, vector=vector) for one in image]
    )
