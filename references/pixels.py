"""Pixels to the numbers that a vision tower reads: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def pixels(r: Reading, codes: Quantity, mean: Quantity, std: Quantity, scaling: str) -> Quantity:
    """Each 8-bit value scaled to 0 .. 1 and normalised by its channel: y = (p / 255 - mean) / std.

    With mean and std 1/2 it is 2 (p / 255 - 1/2), to the bit.

    Args:
        codes: (rows, d, channels) uint8; a row is a line of an image.
        mean, std: (channels,) fp32, in units of the whole range; std positive.
        scaling: 'quotient', p / 255; 'product', p times the fp32 number next to 1 / 255; 'folded', (p - 255 mean) / (255
            std), the factors in fp32.

    Rounding points:
        factor: 255 mean and 255 std (folded only).
        rescaled: p / 255 (not where it is folded).
        centred: the value with its mean taken off.
        out: the result.

    Freedoms: unnamed steps in fp32 or wider.

    Source: transformers, image_transforms.py, rescale and normalize (quotient, as a product in fp64);
    image_processing_backends.py, _fuse_mean_std_and_rescale_factor (folded); modeling_gemma4.py, 2 (p - 1/2).
    """
    if scaling == "folded":
        centred = r.round("centred", codes - r.round("factor", mean * 255.0))
        return r.round("out", centred / r.round("factor", std * 255.0))
    # the fp32 number itself: a constant that may be kept wider would be the quotient
    nearest = float.fromhex("0x1.010102p-8")
    rescaled = codes / 255.0 if scaling == "quotient" else codes * nearest
    return r.round("out", r.round("centred", r.round("rescaled", rescaled) - mean) / std)
