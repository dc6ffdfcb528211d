"""Planted pools of image patches: faults that kernels have had, and legal variants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.vit_pool import NINE, nine_sums, standardised
from contract.lazy import lazy
from contract.references.vit_pool import WINDOW

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def finished(total: Tensor, bias: Tensor, scale: Tensor, root: float) -> Tensor:
    """A sum of nine, divided and standardised as the profile `mean` does."""
    return standardised((total / NINE).to(bias.dtype), bias, scale, root, "mean")


# -- which patches


@red("vit_pool", profile=("mean", "each_step"), gate="shapes")
def nine_in_a_row(
    x: Tensor,
    positions: Tensor,
    cells: Tensor,
    bias: Tensor,
    scale: Tensor,
    *,
    root: float,
    profile: str,
) -> Tensor:
    """Patches 9 r to 9 r + 8 are pooled: a strip of the raster, not a square."""
    total = torch.zeros(cells.shape[0], x.shape[1])
    parts = x[: NINE * cells.shape[0]].float().split(NINE)
    for row, part in zip(total, parts, strict=False):
        row += part.sum(0)
    return standardised((total / NINE).to(x.dtype), bias, scale, root, profile)


@red("vit_pool", profile="mean", gate="shapes")
def axes_exchanged(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """Columns are taken for rows."""
    return finished(nine_sums(x, positions.flip(-1), cells), bias, scale, root)


@red("vit_pool", profile="mean", gate="exact")
def raster_assumed(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The grid is read in raster order, whatever the positions say."""
    columns = WINDOW * (int(cells[:, 0].max()) + 1)
    index = torch.arange(x.shape[0], dtype=positions.dtype)
    places = torch.stack([index % columns, index // columns], -1)
    return finished(nine_sums(x, places, cells), bias, scale, root)


@red("vit_pool", profile="mean", gate="exact")
def padding_pooled(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """Padding is clamped to position 0, and its values are added to the first cell."""
    return finished(nine_sums(x, positions.clamp(min=0), cells), bias, scale, root)


@red("vit_pool", profile="mean", gate="exact")
def factor_from_the_patches_present(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The window is the root of live patches a cell: 2 where half of the cells are padding."""
    live = int((positions >= 0).all(-1).sum())
    window = max(1, math.isqrt(live // cells.shape[0]))
    place = torch.where(positions >= 0, positions // window * WINDOW, positions)
    mean = (nine_sums(x, place, cells) / window**2).to(x.dtype)
    return standardised(mean, bias, scale, root, "mean")


@red("vit_pool", profile="mean", gate="shapes")
def windows_overlap(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """A stride of two: each cell begins one patch too early for every cell before it."""
    shifted = torch.where(positions >= 0, positions + cells.amax(), positions)
    return finished(nine_sums(x, shifted, cells), bias, scale, root)


# -- the mean


@red("vit_pool", profile="mean", gate="exact")
def divided_by_the_patches_found(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The mean of the patches that are there, which are not always nine."""
    count = nine_sums(torch.ones_like(x), positions, cells).clamp(min=1.0)
    return finished(nine_sums(x, positions, cells) * NINE / count, bias, scale, root)


@red("vit_pool", profile="mean", gate="shapes")
def divided_by_eight(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """A shift by three bits."""
    return finished(nine_sums(x, positions, cells) * (NINE / 8.0), bias, scale, root)


@red("vit_pool", profile=("mean", "each_step"), gate="exact")
def accumulated_in_bf16(
    x: Tensor,
    positions: Tensor,
    cells: Tensor,
    bias: Tensor,
    scale: Tensor,
    *,
    root: float,
    profile: str,
) -> Tensor:
    """The running sum is rounded after each patch."""
    place = torch.div(positions, WINDOW, rounding_mode="floor")
    total = torch.zeros(cells.shape[0], x.shape[1], dtype=x.dtype)
    for row, cell in zip(total, cells, strict=True):
        for patch in x[(place == cell).all(-1)]:
            row += patch
    return standardised(total / NINE, bias, scale, root, profile)


@red("vit_pool", profile="mean", gate="exact")
def mean_in_fp16(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The mean is kept in fp16: 11 bits where bf16 has 8."""
    mean = (nine_sums(x, positions, cells) / NINE).half().float()
    return ((mean * root - bias.float()) * scale.float()).to(x.dtype)


# -- after the mean


@red("vit_pool", profile="mean", gate="shapes")
def root_left_out(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The mean is not scaled."""
    return finished(nine_sums(x, positions, cells), bias, scale, 1.0)


@red("vit_pool", profile="mean", gate="shapes")
def not_standardised(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The scaled mean is stored."""
    mean = (nine_sums(x, positions, cells) / NINE).to(x.dtype)
    return (mean.float() * root).to(x.dtype)


@red("vit_pool", profile="mean", gate="shapes")
def bias_after_the_scale(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """m root scale - bias."""
    mean = (nine_sums(x, positions, cells) / NINE).to(x.dtype).float()
    return (mean * root * scale.float() - bias.float()).to(x.dtype)


@red("vit_pool", profile="mean", gate="exact")
def each_step_rounded(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """bf16 after the root and after the bias, where fp32 is named."""
    mean = (nine_sums(x, positions, cells) / NINE).to(x.dtype)
    return standardised(mean, bias, scale, root, "each_step")


@red("vit_pool", profile="each_step", gate="exact")
def rounded_once(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """fp32 after the mean, where each step is rounded."""
    return finished(nine_sums(x, positions, cells), bias, scale, root)


# -- legal variants


@green("vit_pool", profile=("mean", "each_step"))
def terms_times_a_ninth(
    x: Tensor,
    positions: Tensor,
    cells: Tensor,
    bias: Tensor,
    scale: Tensor,
    *,
    root: float,
    profile: str,
) -> Tensor:
    """Each patch is weighted with 1 / 9 before the sum."""
    total = nine_sums(x.float() * torch.tensor(1.0 / NINE), positions, cells)
    return standardised(total.to(x.dtype), bias, scale, root, profile)


@green("vit_pool", profile="mean")
def sum_times_a_ninth(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The sum is multiplied by 1 / 9."""
    mean = (nine_sums(x, positions, cells) * torch.tensor(1.0 / NINE)).to(x.dtype)
    return standardised(mean, bias, scale, root, "mean")


@green("vit_pool", profile="mean")
def last_patch_first(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The patches are added from the last one on."""
    return finished(nine_sums(x.flip(0), positions.flip(0), cells), bias, scale, root)


@green("vit_pool", profile="mean")
def in_float64(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """Every unnamed step is kept wider."""
    place = torch.div(positions, WINDOW, rounding_mode="floor")
    total = torch.zeros(cells.shape[0], x.shape[1], dtype=torch.float64)
    row, patch = (cells[:, None] == place[None]).all(-1).nonzero(as_tuple=True)
    mean = (total.index_add_(0, row, x[patch].double()) / NINE).float().to(x.dtype).double()
    return ((mean * root - bias.double()) * scale.double()).float().to(x.dtype)


@green("vit_pool", profile="each_step")
def cell_by_cell(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """One pooled cell at a time."""
    rows = [nine_sums(x, positions, cell[None]) for cell in cells]
    mean = (torch.cat(rows) / NINE).to(x.dtype)
    return standardised(mean, bias, scale, root, "each_step")
