"""Layer norm, then int8 codes: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.layer_norm import layer_norm
from contract.references.static_int8 import scale_of, static_codes


def layernorm_quant(
    r: Reading,
    x: Quantity,
    weight: Quantity,
    bias: Quantity,
    eps: float,
    scale: float,
) -> Quantity:
    """codes = clamp(round(y / s), -127, 127), y = (x - m) / sqrt(v + eps) * w + b.

    Args:
        x: (rows, d) bf16, finite.
        weight, bias: (d,) bf16, finite.
        eps: added to the variance, in units of x squared; positive.
        scale: s, one for the tensor, known beforehand; positive.

    Rounding points:
        normed, scaled: inside the norm (no profile rounds there).
        out: y (bf16_between only).
        code: to nearest, ties to even (int8; -128 is not used).

    Freedoms: as layer_norm with two passes (merged moments of any tree leave one code in eight open); y / s as a quotient or as a product with the reciprocal.

    Specials: what overflows is clamped; a NaN (of sums that overflow) is code 0.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016; SmoothQuant (Xiao et al., 2022), section 4, for codes with
    static scales that leave the norm.
    """
    return static_codes(r, layer_norm(r, x, weight, bias, eps, "two_pass"), scale_of(r, scale))
