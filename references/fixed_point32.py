"""Conversion to FixedPoint32 (int32 * 2^-frac): what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

LIMIT = float(2**31)


def fixed_point32(
    r: Reading, x: Quantity, frac: str, overflow: str
) -> dict[str, Quantity] | Quantity:
    """codes = round(x * 2^frac), saturating at -2^31 and 2^31 - 1.

    Args:
        x: (rows, d) fp32, finite.
        frac: fraction bits.
        overflow: 'saturate' (codes alone), or 'assert_fits': a second output `fits` says for each row whether no
            code saturated; a host raises where it is 0, a device saturates.

    Rounding points:
        code: to nearest, ties to even (int32).
        fits: none (exact).

    Specials: a zero of either sign is code 0.
    """
    scaled = x * 2.0 ** int(frac)
    codes = r.round("code", scaled)
    if overflow == "saturate":
        return codes
    # 2^31 - 1/2 rounds up to 2^31 and -2^31 - 1/2 to -2^31: both ends of what still fits
    high = r.less(scaled, LIMIT - 0.5)
    one = x * 0.0 + 1.0
    inside = r.where(high, one, one - 1.0)
    inside = r.where(r.less(scaled, -LIMIT - 0.5), one - 1.0, inside)
    return {"codes": codes, "fits": r.round("fits", r.min(inside, axis=-1).reshape(-1))}
