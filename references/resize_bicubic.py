"""An 8-bit image resized in fixed point: what the kernel must compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from contract.readings.base import Quantity, Reading

BITS = 22


def resize_bicubic(
    r: Reading,
    image: Quantity,
    left: Quantity,
    across: Quantity,
    top: Quantity,
    down: Quantity,
    first: str,
) -> Quantity:
    """Two passes of weighted sums of pixels, one across and one down, each rounded to 8 bits.

        pass(p)[i] = clip((2^21 + sum over t of p[first[i] + t] weight[i, t]) >> 22, 0, 255)

    Weights have 22 bits behind the point; a tap past the edge is not read. Which filter they are of, and how they depend
    on the sizes, is the table's (`bicubic_table`).

    Args:
        image: (rows, high, wide, channels) uint8; a row of the contract is one image.
        left: (broad,) int32, the first column of each new one; across: (broad, reach) int32, its weights.
        top: (tall,) int32, the first line of each new one; down: (tall, rise) int32, its weights.
        first: the pass that comes first, 'across' or 'down'; the rounding between them tells the orders apart.

    Rounding points:
        out: the second pass, half up, clipped to 0 .. 255. The first pass is rounded alike, in integers.

    Source: Pillow, src/libImaging/Resample.c (ImagingResampleHorizontal_8bpc, PRECISION_BITS); its
    pull request 9549 for the order (Pillow 13).
    """
    # (rows, channels, lines, columns); the pass down is one across the turned image
    pixels = np.moveaxis(r.integers(image), 3, 1)
    passes = [(3, left, across), (2, top, down)]
    for axis, start, weights in passes if first == "across" else passes[::-1]:
        total = weighted(np.moveaxis(pixels, axis, 3), r.integers(start), r.integers(weights))
        total = np.moveaxis(total, 3, axis)
        pixels = np.clip((total + (1 << (BITS - 1))) >> BITS, 0, 255)
    exact = r.exactly(np.moveaxis(total, 1, 3) / 2.0**BITS)
    # half up and half away differ below 0 only, where both are clipped to 0
    return r.round("out", exact, mode="half_away")


def weighted(
    pixels: NDArray[np.int64], first: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(..., n) pixels to (..., len(first)) exact sums."""
    total = np.zeros((*pixels.shape[:-1], len(first)), np.int64)
    for new, start in enumerate(first):
        live = pixels[..., start : start + weights.shape[1]]
        total[..., new] = live @ weights[new, : live.shape[-1]]
    return total
