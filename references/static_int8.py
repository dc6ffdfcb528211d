"""The last step of kernels that store int8 codes with a scale known beforehand: a step of references."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def static_codes(r: Reading, y: Quantity, scale: Quantity) -> Quantity:
    """clamp(round(y / s), -127, 127), to nearest, ties to even, at the rounding point `code`; a NaN is code 0.

    A quotient, or a product with 1 / s: they differ where y / s lies next to a half, and both are allowed.
    """
    quotient = r.union(y / scale, y * (1.0 / scale))
    held = r.maximum(r.minimum(quotient, 127.0), -127.0)
    # false for NaN alone
    return r.round("code", r.where(r.less(held, 128.0), held, 0.0))


def scale_of(r: Reading, scale: float) -> Quantity:
    """A scale that the caller states, in fp32."""
    return r.wrap(r.lift(scale))
