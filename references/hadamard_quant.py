"""A Walsh-Hadamard rotation over tiles of a row, then int8 codes: what the kernel must compute."""

from __future__ import annotations

import math

from contract.readings.base import Quantity, Reading
from contract.references.static_int8 import scale_of, static_codes

#: Neighbouring values that one step of the rotation moves together.
LANES = 32


def hadamard_quant(r: Reading, x: Quantity, scale: float) -> Quantity:
    """codes = clamp(round(y / s), -127, 127), y[g, l] = G^-1/2 sum over g' of H[g, g'] x[g', l].

    A row of d values is G groups of 32 lanes, x[32 g + l]; H is Sylvester's matrix of order G, H[g, g'] = (-1)^(bits that
    g and g' share). The sum is made of log2 G stages of additions and subtractions over the groups, none over the lanes.
    In stage k = 0, 1, ... group i with bit k clear and its partner i + 2^k become their sum and their difference; G^-1/2
    is folded into the scale.

    Args:
        x: (rows, d) bf16 (fp32 under float32), finite, d = 32 G, G a power of two from 2 on.
        scale: s, of the normalised y; positive.

    Rounding points:
        stage: every addition and subtraction, to fp32. The order of the stages is part of the kernel.
        code: to nearest, ties to even (int8; -128 is not used).

    Freedoms: the folded scale and y / s in fp32 or wider, as a quotient or as a product with the reciprocal.

    Specials: what overflows is clamped; a NaN (of infinities that overflowed) is code 0.

    Source: Fino and Algazi, Unified matrix treatment of the fast Walsh-Hadamard transform, 1976; QuaRot (Ashkboos et al.,
    2024), section 3, for the rotation before a quantiser.
    """
    rows, d = x.shape
    groups = d // LANES
    span = 1
    while span < groups:
        pairs = x.reshape(rows, groups // (2 * span), 2, span * LANES)
        low, high = pairs[:, :, 0:1], pairs[:, :, 1:2]
        x = r.concat([r.round("stage", low + high), r.round("stage", low - high)], axis=2)
        span *= 2
    folded = scale_of(r, scale) * math.sqrt(groups)
    return static_codes(r, x.reshape(rows, d), folded)
