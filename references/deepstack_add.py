"""A vision tap added to image rows: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading
from contract.references.splice_rows import image_numbers


def deepstack_add(r: Reading, h: Quantity, tap: Quantity, is_image: Quantity) -> Quantity:
    """out[b, i] = h[b, i] + tap[b, k] where row i is the k-th image row of its sequence (from 0), else h[b, i].

    Args:
        h: (batch, rows, d) bf16, the stream after a layer of the language model.
        tap: (batch, images, d) bf16, merged rows of a vision layer in the order of the image ids.
        is_image: (batch, rows) uint8, 1 where the id is the image's, else 0.

    Rounding points:
        out: the sum. Text rows, and image ids past the last tap row, keep their bits.

    Freedoms: the sum in fp32 or wider.

    Specials: infinities of both signs give NaN.

    Source: DeepStack (Meng et al., 2024), section 3.2; Qwen3-VL adds tap j after layer j of the language model.
    """
    batch, images, d = tap.shape
    taken, number = image_numbers(r, is_image, images)
    flat = r.take(tap.reshape(batch * images, d), images * np.arange(batch)[:, None] + number)
    image = r.less(r.exactly(0.5), r.exactly(taken[..., None].astype(np.int64)))
    return r.where(image, r.round("out", h + flat), h)
