"""RMS norm with gain 1 + w, then int8 codes: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.rms_norm import rms_norm
from contract.references.static_int8 import scale_of, static_codes


def rmsnorm_quant(r: Reading, x: Quantity, weight: Quantity, eps: float, scale: float) -> Quantity:
    """codes = clamp(round(y / s), -127, 127), y = x / sqrt(mean(x^2) + eps) * (1 + w).

    Args:
        x: (rows, d) bf16, finite.
        weight: (d,) bf16, finite; 1 + w is formed in fp32.
        eps: added to the mean square, in units of x squared; positive.
        scale: s, one for the tensor, known beforehand; positive.

    Rounding points:
        normed: x times the inverse root mean square (no profile rounds here).
        out: y (bf16_between only).
        code: to nearest, ties to even (int8; -128 is not used).

    Freedoms: as rms_norm; y / s as a quotient or as a product with the reciprocal.

    Specials: what overflows is clamped; a NaN (of squares that overflow) is code 0.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; SmoothQuant (Xiao et al., 2022), section 4, for
    codes with static scales that leave the norm.
    """
    return static_codes(r, rms_norm(r, x, weight, eps, "1+w"), scale_of(r, scale))
