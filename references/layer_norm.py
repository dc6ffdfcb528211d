"""Layer normalisation: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def layer_norm(
    r: Reading, x: Quantity, weight: Quantity, bias: Quantity, eps: float, moments: str
) -> Quantity:
    """Layer normalisation of each row: y = (x - m) / sqrt(v + eps) * w + b, m and v the row's mean and variance.

    Args:
        x: (rows, d) bf16, or fp32 under the profile float32.
        weight, bias: (d,), same format.
        eps: added to the variance, in units of x squared; positive.
        moments: 'two_pass', mean((x - m)^2), or 'welford', running moments of blocks that are merged.

    Rounding points:
        normed: (x - m) times the inverse deviation (each_op only).
        scaled: times the gain (each_op only).
        out: the result, bias added.

    Freedoms: both means in any order, or moments merged in any tree; rsqrt within 2 fp32 ulps.

    Specials: a NaN or an infinity makes its row NaN; a constant row is the bias, up to the error of its mean. The
    variance is never mean(x^2) - m^2, which cancels.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
    """
    if moments == "welford":
        mean, variance = r.welford(x, name="welford")
    else:
        mean = r.mean(x, name="mean")
        variance = r.variance(x, mean, name="variance")
    normed = r.round("normed", (x - mean) * r.rsqrt(variance + eps))
    scaled = r.round("scaled", normed * weight)
    return r.round("out", scaled + bias)
