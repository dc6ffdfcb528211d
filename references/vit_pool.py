"""3 x 3 pooling of image patches by position: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading

WINDOW = 3


def vit_pool(
    r: Reading,
    x: Quantity,
    positions: Quantity,
    cells: Quantity,
    bias: Quantity,
    scale: Quantity,
    root: float,
) -> Quantity:
    """Mean of the patches of each pooled cell, scaled and standardised: y = (m root - bias) scale.

        m = sum of x[p] over the patches p with positions[p] // 3 = cells[row], divided by 9

    Always by 9, whether or not all nine patches are there; a cell without patches has the mean 0. The order of the
    patches does not matter, their positions do.

    Args:
        x: (patches, d) bf16, the rows of the tower.
        positions: (patches, 2) int32, (column, row) of each patch; -1, -1 marks padding, whose x is not read.
        cells: (rows, 2) int32, (column, row) of each pooled cell, in units of three patches.
        bias, scale: (d,) bf16, the standardisation.
        root: sqrt(d) in Gemma 4, d being the whole width.

    Rounding points:
        mean: the mean, before it is scaled.
        scaled: m root (each_step only).
        centred: m root - bias (each_step only).
        out: the result.

    Freedoms: the sum in any order; divided by 9, multiplied by 1 / 9, or each term multiplied by it.

    Specials: a NaN or infinity reaches its own cell and column alone; infinities of both signs give NaN.

    Source: transformers, modeling_gemma4.py, Gemma4VisionPooler and Gemma4VisionModel.
    """
    index = members(r.integers(positions), r.integers(cells))
    nothing = r.exactly(np.zeros((1, x.shape[1])))
    terms = r.take(r.concat([x, nothing], axis=0), index)
    total = r.sum(terms, axis=1)
    ninth = r.reciprocal(WINDOW * WINDOW)
    after = r.union(total / float(WINDOW * WINDOW), total * ninth)
    mean = r.union(after, r.sum(terms * ninth, axis=1)).reshape(index.shape[0], x.shape[1])
    scaled = r.round("scaled", r.round("mean", mean) * root)
    return r.round("out", r.round("centred", scaled - bias) * scale)


def members(positions: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """(rows, most) int64: the patches of each cell, filled up with the index that follows the last patch."""
    found: dict[tuple[int, ...], list[int]] = {}
    for patch, place in enumerate(positions):
        if (place >= 0).all():
            found.setdefault(tuple(int(c) for c in place // WINDOW), []).append(patch)
    lists = [found.get(tuple(int(c) for c in cell), []) for cell in cells]
    index = np.full((len(lists), max(1, *map(len, lists))), len(positions), np.int64)
    for row, patches in enumerate(lists):
        index[row, : len(patches)] = patches
    return index
