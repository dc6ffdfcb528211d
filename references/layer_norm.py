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
        moments: 'two_pass', m = mean(x) and v = mean((x - m)^2); or 'merged', running moments of blocks that are merged,
            applied as (x - m) s or as x s - m s, which loses s |m| in units of the last bit.

    Rounding points:
        normed: (x - m) times the inverse deviation (each_op only).
        scaled: times the gain (each_op only).
        out: the result, bias added.

    Freedoms: both means in any order; moments merged along any tree; rsqrt within 2 fp32 ulps.

    Specials: a NaN or an infinity makes its row NaN; a constant row is the bias, up to the error of its mean. The
    variance is never mean(x^2) - m^2, which cancels.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
    """
    if moments == "merged":
        mean, variance = r.welford(x, name="merged")
        inverse = r.rsqrt(variance + eps)
        # kernels with merged moments fold the mean into an offset (torch's CPU bf16), or do not (its CUDA and fp32 ones)
        deviation = r.union(r.folded(x, mean, inverse), (x - mean) * inverse)
    else:
        mean = r.mean(x, name="mean")
        inverse = r.rsqrt(r.variance(x, mean, name="variance") + eps)
        deviation = (x - mean) * inverse
    normed = r.round("normed", deviation)
    scaled = r.round("scaled", normed * weight)
    return r.round("out", scaled + bias)
