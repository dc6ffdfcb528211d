"""Scales of a layer's channels moved from its norm into the next linear layer: what the kernels must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

#: No scale, and no weight's peak that it is formed with, is smaller.
LEAST = 1e-5


def smooth_fold(
    r: Reading, weight: Quantity, gain: Quantity, peaks: Quantity, form: str
) -> dict[str, Quantity]:
    """s_j = sqrt(max|X_j|) / sqrt(max|W_j|);  g_j <- g_j / s_j;  W_ij <- W_ij s_j.

    The layer computes what it did; the activations between lie closer together, the weights further apart.

    Args:
        weight: (outputs, channels) bf16 or fp32, finite: all layers that read the norm, one below the other (q, k, v).
        gain: (channels) of the same format, finite: what the norm stores.
        peaks: (channels) fp32, finite: max|X_j| over the calibration data; what is below 0 counts as 0.
        form: whether the norm multiplies with 'w' or with '1+w'; then w' = (1 + w) / s - 1.

    Rounding points:
        roots: both square roots, in fp32.
        scale: s in fp32, then at least 1e-5; all that follows is computed from it.
        gain, weight: what is stored, in the format that it came in.

    Freedoms: sums, products and quotients in fp32 or wider; square roots as IEEE 754 has them.

    Source: Xiao et al., SmoothQuant, 2023, equation 4 with alpha 1/2; its code for the least scale (smooth.py).
    """
    largest = r.maximum(weight_peaks(r, weight), LEAST)
    quotient = root(r, r.maximum(peaks, 0.0)) / root(r, largest)
    scale = r.observed("scale", r.round("scale", r.maximum(quotient, LEAST)))
    folded = (1.0 + gain) / scale - 1.0 if form == "1+w" else gain / scale
    return {
        "scale": scale,
        "new_gain": r.round("gain", folded),
        "new_weight": r.round("weight", weight * scale),
    }


def ln_equalise(
    r: Reading, weight: Quantity, gain: Quantity, bias: Quantity, peaks: Quantity, bound: float
) -> dict[str, Quantity]:
    """s_j = min(max(sqrt(max|X_j|) / sqrt(max|W_j|), 1 / c), c);  g_j, b_j <- g_j / s_j, b_j / s_j;  W_ij <- W_ij s_j.

    Args:
        weight, gain, peaks: as of `smooth_fold`; the gain of a layer norm multiplies as it is.
        bias: (channels) of the layer norm, in the format of the gain, finite.
        bound: c, at least 1.

    Rounding points:
        roots: both square roots, in fp32.
        scale: s in fp32; all that follows is computed from it.
        gain, bias, weight: what is stored, in the format that it came in.

    Freedoms: as of `smooth_fold`.

    Specials: a channel that is never active, or that nothing reads, has the scale 1.

    Source: Nagel, van Baalen, Blankevoort and Welling, Data-Free Quantization Through Weight Equalization and Bias
        Correction, 2019, equation 11, with a bound on the scale.
    """
    largest, active = weight_peaks(r, weight), r.maximum(peaks, 0.0)
    quotient = r.minimum(r.maximum(root(r, active) / root(r, largest), 1.0 / bound), bound)
    none, one = active * 0.0, active * 0.0 + 1.0
    held = r.where(r.less(none, active), r.where(r.less(none, largest), quotient, one), one)
    scale = r.observed("scale", r.round("scale", held))
    return {
        "scale": scale,
        "new_gain": r.round("gain", gain / scale),
        "new_bias": r.round("bias", bias / scale),
        "new_weight": r.round("weight", weight * scale),
    }


def weight_peaks(r: Reading, weight: Quantity) -> Quantity:
    """max|W_j| over the outputs that read channel j."""
    return r.max(r.abs(weight), axis=0)[0]


def root(r: Reading, x: Quantity) -> Quantity:
    """The square root nearest to the real one."""
    return r.round("roots", r.sqrt(x, ulps=0))
