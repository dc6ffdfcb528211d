"""An image cut into patches: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading

MERGE = 2


def patchify(r: Reading, image: Quantity, patch: float, grid: str, vector: str) -> Quantity:
    """Each patch of patch x patch pixels as one vector; what is left over at the right and lower edge is ignored.

    Args:
        image: (rows, channels, high, wide) fp32; a row of the contract is one image.
        patch: side of a patch in pixels.
        grid: order of the patches: 'raster', row by row; 'blocks', block by block of 2 x 2 patches, each row by row (blocks at
            an odd edge are smaller).
        vector: order inside a patch: 'row_col_channel' or 'channel_row_col'.

    Rounding points: none; every bit is moved.

    Source: transformers, image_processing_siglip2.py (row_col_channel), modeling_siglip.py (the convolution's weight,
    channel_row_col), image_processing_qwen2_vl.py (blocks).
    """
    side = int(patch)
    images, channels, high, wide = image.shape
    rows, columns = high // side, wide // side
    kept = image[:, :, : rows * side, : columns * side]
    # (image, channel, patch row, row, patch column, column) -> (image, patch row, patch column, ...)
    cut = kept.reshape(images, channels, rows, side, columns, side)
    cut = cut.swapaxes(1, 2).swapaxes(2, 4).swapaxes(3, 4)
    if vector == "row_col_channel":
        # channel last, rows before columns
        cut = cut.swapaxes(3, 5).swapaxes(3, 4)
    cut = cut.reshape(images, rows * columns, channels * side * side)
    return cut if grid == "raster" else r.take(cut, blocks(rows, columns), axis=1)


def blocks(rows: int, columns: int) -> np.ndarray:
    """Raster indices of the patches, block by block."""
    found = [
        (row // MERGE, column // MERGE, row, column, row * columns + column)
        for row in range(rows)
        for column in range(columns)
    ]
    return np.array([place[-1] for place in sorted(found)])
