"""Saturating fp8 quantiser with a power-of-two scale: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

#: Halfway from the largest value, 240, to the step that is not there: from here on no code is near.
CLIPPED = 248.0


def quant_f143_sat(r: Reading, x: Quantity, k: float, source: str) -> dict[str, Quantity]:
    """codes = e4m3fnuz(x 2^-k), values beyond the range at its end; clipped = how many of a row those are.

    Args:
        x: (rows, d) of the format `source`.
        k: integer in -32 .. 31; a code stands for code * 2^k.
        source: bf16, fp16 or fp32.

    Rounding points:
        code: to nearest, ties to even, once, saturating at +-240; subnormal codes (m 2^-10) are kept.
        count: int32, exact.

    Specials: a NaN becomes the code 0x80 and is not counted; infinities become +-240 and are counted; -0 and what rounds
    to it become 0x00. Counted are |x 2^-k| >= 248, which rounds beyond 240; what lies between rounds to 240 unclipped.

    Freedoms: x 2^-k in fp32 or wider; the count in any order.

    Source: Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022 (1-4-3, one NaN, clipped overflow).
    """
    scaled = x * 2.0**-k
    size = r.abs(scaled)
    none, one = r.exactly(0.0), r.exactly(1.0)
    # a NaN is neither below the limit nor above 0: no branch but the last takes it
    counted = r.where(r.less(size, CLIPPED), none, r.where(r.less(none, size), one, none))
    return {
        "codes": r.round("code", scaled),
        "clipped": r.round("count", r.sum(counted, name="count").reshape(-1)),
    }
