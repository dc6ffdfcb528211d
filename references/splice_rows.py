"""Image rows in place of the rows of image ids: what the kernel must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.readings.base import Quantity, Reading


def splice_rows(r: Reading, h: Quantity, image: Quantity, is_image: Quantity) -> Quantity:
    """out[b, i] = image[b, k] where row i is the k-th image row of its sequence (from 0), else h[b, i].

    A move: no bit changes. Image rows are not scaled, though text rows were (by sqrt(d), before this kernel).

    Args:
        h: (batch, rows, d) bf16, embedded text rows; what stands in image rows is not read.
        image: (batch, images, d) bf16, projected image rows in the order of the image ids.
        is_image: (batch, rows) uint8, 1 where the id is the image's, else 0.

    Specials: image ids past the last image row keep h's row; image rows past the last image id are not used. NaN stays
    NaN, subnormals and the sign of zero are kept.

    Source: PaliGemma (Beyer et al., 2024), section 3.1: image tokens and text tokens in one sequence.
    """
    batch, rows, d = h.shape
    images = image.shape[1]
    taken, number = image_numbers(r, is_image, images)
    table = r.concat([h.reshape(batch * rows, d), image.reshape(batch * images, d)], axis=0)
    own = np.arange(batch * rows).reshape(batch, rows)
    theirs = batch * rows + images * np.arange(batch)[:, None] + number
    return r.take(table, np.where(taken, theirs, own))


def image_numbers(r: Reading, is_image: Quantity, images: int) -> tuple[Any, Any]:
    """Which rows take an image row, and the number of that row; 0 for the others."""
    flags = r.integers(is_image) == 1
    number = np.cumsum(flags, axis=-1) - 1
    taken = flags & (number < images)
    return taken, np.where(taken, number, 0)
