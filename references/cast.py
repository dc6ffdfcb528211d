"""Conversion to a narrower format: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def cast(r: Reading, x: Quantity, source: str, to: str) -> Quantity:
    """Each value rounded once, to nearest, ties to even.

    Args:
        x: (rows, d) fp32, or fp64 with source=fp64.
        source: format of x.
        to: format of the result: bf16, fp16, e4m3fn, e4m3fnuz, e5m2.

    Rounding points:
        out: the result; a conversion through fp32 rounds twice and is refused with source=fp64.

    Specials: a NaN stays one; a zero keeps its sign (e4m3fnuz has none). What lies beyond the largest value, infinities
    included, becomes an infinity (profile inf), NaN (nan) or the largest value (saturate). Subnormals are kept.

    Source: IEEE 754-2019, section 4.3; OCP 8-bit floating point, 2023, section 5; Graphcore, 8-bit numerical formats,
    2022, for e4m3fnuz.
    """
    return r.round("out", x)
