"""A layer's scalar: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def scale(r: Reading, h: Quantity, scalar: Quantity) -> Quantity:
    """out = h * s, element by element, s one number a layer.

    Args:
        h: (rows, d) bf16 (fp32 under float32), the stream.
        scalar: () of the same format.

    Rounding points:
        out: the product, once.

    Freedoms: the product in fp32 or wider.

    Specials: an infinity times 0 is NaN; a zero's sign is the product of both.

    Source: Touvron et al., Going deeper with Image Transformers, 2021 (LayerScale); Gemma 4's layer_scalar.
    """
    return r.round("out", h * scalar)
