"""RMS normalisation: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def rms_norm(r: Reading, x: Quantity, weight: Quantity | None, eps: float, gain: str) -> Quantity:
    """RMS normalisation of each row: y = x / sqrt(mean(x^2) + eps) * g, with g = w, 1 + w or nothing.

    Args:
        x: (rows, d) bf16, or fp32 under the profile float32.
        weight: (d,), same format; absent with gain=none.
        eps: added to the mean square, in units of x squared; positive.
        gain: 'w', '1+w' (formed in fp32) or 'none'.

    Rounding points:
        normed: x times the inverse root mean square, before the gain (two_step only).
        out: the result.

    Freedoms: the mean square in any order; rsqrt within 2 fp32 ulps.

    Specials: a NaN or an infinity makes its row NaN, but for infinities' neighbours: the inverse is 0 and they are
    zeros of their sign (an infinity times 0 is NaN); a zero keeps its sign under a positive gain.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    inverse = r.rsqrt(r.mean(r.square(x), name="mean") + eps)
    normed = r.round("normed", x * inverse)
    if weight is None:
        return r.round("out", normed)
    return r.round("out", normed * (1.0 + weight if gain == "1+w" else weight))
