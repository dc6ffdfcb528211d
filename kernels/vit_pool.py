"""3 x 3 pooling of image patches by position: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_one, near_zero
from contract.kernels.grids import POSITIONS, grid_cells, patch_positions
from contract.lazy import lazy
from contract.references.vit_pool import WINDOW
from contract.references.vit_pool import vit_pool as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

NINE = WINDOW * WINDOW


def typical_positions(rng: Any, shape: tuple[int, ...]) -> Any:
    """A grid in raster order of all patches that fill cells; the others are padding."""
    return patch_positions(shape[0], WINDOW)


def typical_cells(rng: Any, shape: tuple[int, ...]) -> Any:
    """The cells of such a grid in raster order."""
    return grid_cells(shape[0])


def exact_means(rng: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """(9, *shape) values of 8 bits whose means M are integers of 10 bits, a quarter of a bf16 step beside one.

    Seven are 4 k plus and minus multiples of 4, one is odd and at most 255, the last is what 9 M then needs, a multiple of 8
    below 2048. The mean lies on no tie, so that the one ulp between the ways to divide by 9 does not show.
    """
    k = rng.integers(130, 250, shape)
    beside = rng.choice([1, 3], shape)
    odd = 129 + 8 * rng.integers(0, 15, shape) + (beside == 3) * 2
    steps = rng.integers(1, 5, (3, *shape))
    terms = [4 * (k + s) for s in steps] + [4 * (k - s) for s in steps] + [4 * k, odd]
    last = NINE * (4 * k + beside) - sum(terms)
    sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    x = rng.permuted(np.stack([*terms, last]).astype(np.float64), axis=0)
    return x * sign, (4 * k + beside) * sign


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: means of multiples of 9, patches in any order, large values in the padding.

    Where there are fewer than nine patches a cell, half of the cells have none; one cell in eight has lost two of its
    patches. At root 32 the steps after the mean are exact in fp32.
    """
    rows, patches, d = shape["rows"], shape["patches"], shape["d"]
    cells = grid_cells(rows)
    live = min(rows, patches // NINE)
    places = np.full((patches, 2), -1.0)
    x = np.full((patches, d), 2.0**100)
    within = np.array([(c, r) for r in range(WINDOW) for c in range(WINDOW)])
    values, _ = exact_means(rng, (live, d))
    for row in range(live):
        at = slice(NINE * row, NINE * row + NINE)
        places[at], x[at] = WINDOW * cells[row] + within, values[:, row]
        if row % 8 == 5:
            places[NINE * row + 2 : NINE * row + 4] = -1.0
    order = rng.permutation(patches)
    return {
        "x": x[order],
        "positions": places[order],
        "cells": cells,
        "bias": full_significands(rng, (d,)) * 32.0,
        "scale": full_significands(rng, (d,)) / 128.0,
    }


vit_pool = register(
    Contract(
        name="vit_pool",
        family="vision",
        summary="3 x 3 means of patches by position, scaled and standardised",
        reference=reference,
        operands=(
            tensor("x", "patches d"),
            tensor(
                "positions",
                "patches axes",
                "int32",
                typical=typical_positions,
                below=POSITIONS,
                least=-1,
            ),
            tensor("cells", "rows axes", "int32", typical=typical_cells, below=POSITIONS),
            tensor("bias", "d", typical=near_zero),
            tensor("scale", "d", typical=near_one),
            output("out", "rows d"),
        ),
        scalars=(Scalar("root", (math.sqrt(1152.0), 32.0)),),
        profiles=(
            Profile(
                "mean",
                {"mean": "bf16", "scaled": None, "centred": None, "out": "bf16"},
                users="Gemma 4 in transformers",
            ),
            Profile(
                "each_step",
                {"mean": "bf16", "scaled": "bf16", "centred": "bf16", "out": "bf16"},
                users="bf16 operators one by one (earlier versions of transformers)",
            ),
        ),
        row_dims=("rows",),
        column_dim="d",
        # The largest image of Gemma 4 is 280 cells of 1152 columns: all its cells appear with a tile of the columns, all
        # its columns with a few cells.
        shapes=(
            {"rows": 1, "patches": 9, "axes": 2, "d": 1152},
            {"rows": 8, "patches": 72, "axes": 2, "d": 1152},
            {"rows": 280, "patches": 2520, "axes": 2, "d": 8},
        ),
        awkward=(
            {"rows": 2, "patches": 18, "axes": 2, "d": 1},
            {"rows": 6, "patches": 61, "axes": 2, "d": 37},
        ),
        stress=(
            {"patches": 576, "axes": 2, "d": 4},
            {"patches": 36, "rows": 4, "axes": 2, "d": 64},
            {"patches": 58, "rows": 6, "axes": 2, "d": 65},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"rows": 16, "patches": 160, "axes": 2, "d": 16},
            {"rows": 64, "patches": 576, "axes": 2, "d": 8},
            {"rows": 16, "patches": 72, "axes": 2, "d": 64},
            {"rows": 6, "patches": 60, "axes": 2, "d": 257},
        ),
        freedoms={"sum": "any order of nine terms: a proof, Higham section 4.2"},
        rules={"axes is 2": lambda s: s["axes"] == 2},
    )
)


def nine_sums(x: torch.Tensor, positions: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """(rows, d) fp32: sums of the patches of each cell."""
    place = torch.div(positions, WINDOW, rounding_mode="floor")
    row, patch = (cells[:, None] == place[None]).all(-1).nonzero(as_tuple=True)
    total = torch.zeros(cells.shape[0], x.shape[1])
    return total.index_add_(0, row, x[patch].float())


def standardised(
    mean: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, root: float, profile: str
) -> torch.Tensor:
    """(m root - bias) scale of a bf16 mean."""
    if profile == "each_step":
        return (mean * root - bias) * scale
    return ((mean.float() * root - bias.float()) * scale.float()).to(mean.dtype)


@implementation("vit_pool", name="torch", profile=("mean", "each_step"))
def vit_pool_torch(
    x: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    *,
    root: float,
    profile: str,
) -> torch.Tensor:
    """Sums by position in fp32, divided by nine; padding matches no cell."""
    mean = (nine_sums(x, positions, cells) / NINE).to(x.dtype)
    return standardised(mean, bias, scale, root, profile)
