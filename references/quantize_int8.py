"""Symmetric int8 quantisation with its scale: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def quantize_int8(r: Reading, x: Quantity, granularity: str, division: str) -> dict[str, Quantity]:
    """codes = clamp(round(x / s), -127, 127), s = max|x| / 127.

    Args:
        x: (rows, d) fp32, finite.
        granularity: 'tensor' (one scale) or 'channel' (one per row, as of a weight's output channel).
        division: 'true' (max / 127 and x / s) or 'reciprocal' (max * (1 / 127) and x * (1 / s)); they differ where
            x / s is near a half.

    Rounding points:
        scale: s in fp32.
        code: to nearest, ties to even (int8; -128 is not used).

    Specials: where all values are zero the scale is 1 and the codes are 0. A zero has the code 0 also where 1 / s is an
        infinity in fp32 (s below 2^-128).

    Freedoms: x / s in fp32 or wider.
    """
    largest = r.max(r.abs(x), axis=-1)
    if granularity == "tensor":
        largest = r.max(largest, axis=-2)
    ratio = largest / 127.0 if division == "true" else largest * r.reciprocal(127)
    ones = largest * 0.0 + 1.0
    scale = r.where(r.less(largest * 0.0, largest), r.round("scale", ratio), ones)
    quotient = x / scale if division == "true" else x * (1.0 / scale)
    codes = r.round("code", r.maximum(r.minimum(quotient, 127.0), -127.0))
    if granularity == "tensor":
        return {"codes": codes, "scale": r.round("scale", scale.reshape())}
    return {"codes": codes, "row_scale": r.round("scale", scale.reshape(-1))}
