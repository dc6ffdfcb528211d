"""Normalisation of rows to length 1: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def l2norm(r: Reading, x: Quantity, eps: float) -> Quantity:
    """y = x / sqrt(sum(x^2) + eps) along each row.

    Args:
        x: (rows, d) bf16 or fp32; a row is one head of one token.
        eps: added to the sum of squares under the root, in units of x squared; positive.

    Rounding points:
        out: what is stored, always.

    Freedoms: the sum in any order; rsqrt within 2 fp32 ulps; a quotient by the rounded root
        lies inside.

    Specials: a row of zeros gives zeros of their signs; a NaN makes its row NaN; an infinity makes its own element NaN and
        the others zero.

    Source: flash-linear-attention, modules/l2norm, 2024 (eps under the root).
    """
    inverse = r.rsqrt(r.sum(r.square(x), name="sum") + eps)
    return r.round("out", x * inverse)
