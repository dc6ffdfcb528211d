"""Gated RMS normalisation: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def rms_norm_gated(
    r: Reading, x: Quantity, gate: Quantity, weight: Quantity, eps: float
) -> Quantity:
    """RMS normalisation of each row, then the gate: y = x / sqrt(mean(x^2) + eps) * w * silu(z).

    Args:
        x, gate: (rows, d) bf16; a row is one head of one token.
        weight: (d,) bf16.
        eps: added to the mean square, in units of x squared; positive.

    Rounding points:
        normed: x times the inverse root mean square, before the gain (three_step only).
        scaled: times the gain (three_step only).
        out: times silu of the gate, which is never rounded.

    Freedoms: the mean square in any order; rsqrt and exp within 2 fp32 ulps; silu as a quotient or through the sigmoid.

    Specials: a NaN or an infinity makes its row NaN, but for infinities' neighbours, which are zeros; a gate of minus
    infinity gives NaN or a zero (minus infinity times the sigmoid's 0, or over infinity).

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024, section 3.4 (output gate and norm).
    """
    inverse = r.rsqrt(r.mean(r.square(x), name="mean") + eps)
    normed = r.round("normed", x * inverse)
    scaled = r.round("scaled", normed * weight)
    return r.round("out", scaled * r.silu(gate))
