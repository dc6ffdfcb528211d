"""Grids of image patches that the vision contracts share."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Rows of Gemma 4's table of positions: a patch's column and row lie below it.
POSITIONS = 10240


def grid_of(cells: int) -> tuple[int, int]:
    """(columns, rows) of that many cells, as square as they can be and wider than high."""
    high = max(h for h in range(1, int(cells**0.5) + 1) if cells % h == 0)
    return cells // high, high


def raster(columns: int, rows: int) -> Any:
    """(columns rows, 2) float64: (column, row), row by row."""
    row, column = np.divmod(np.arange(columns * rows), columns)
    return np.stack([column, row], -1).astype(np.float64)


def grid_cells(cells: int) -> Any:
    """The cells of a grid in raster order."""
    return raster(*grid_of(cells))


def patch_positions(patches: int, window: int) -> Any:
    """A raster of the patches that fill cells of window x window; -1, -1 for those left over."""
    full = patches // window**2
    columns, rows = grid_of(full) if full else (0, 0)
    places = np.full((patches, 2), -1.0)
    places[: full * window**2] = raster(columns * window, rows * window)
    return places


def block_order(rows: int, columns: int, merge: int) -> Any:
    """Raster indices of a grid's patches in the order block row, block column, row, column of blocks of merge x merge.

    Blocks at the lower and right edge are smaller where merge does not divide the grid; 1 is the raster itself.
    """
    row, column = np.divmod(np.arange(rows * columns), columns)
    return np.lexsort((column, row, column // merge, row // merge))
