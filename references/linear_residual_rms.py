"""Product, residual sum and the next norm: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.add_rms_tail import add_rms_tail


def linear_residual_rms(
    r: Reading,
    x: Quantity,
    weight: Quantity,
    residual: Quantity,
    norm_weight: Quantity,
    eps: float,
    reads: str,
) -> dict[str, Quantity]:
    """total = x W^T + h, out = total / sqrt(mean(total^2) + eps) * w: a projection with the tail of `add_rms_tail`.

    Args:
        x: (rows, k) bf16.
        weight: (n, k) bf16, W.
        residual: (rows, n) bf16, the stream h.
        norm_weight: (n,) bf16, w.
        eps: added to the mean square, in units of x squared; positive.
        reads: 'stored', the norm reads the rounded total, or 'unrounded', the sum before the store.

    Rounding points:
        product: the projection (each only).
        total: the stream that is stored.
        out: the normed stream.

    Freedoms: both sums in any order; rsqrt within 2 fp32 ulps.

    Specials: as linear, then as add_rms_tail.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Touvron et al., LLaMA, 2023 (pre-norm blocks).
    """
    product = r.round("product", r.dot(x, weight.swapaxes(-1, -2)))
    return add_rms_tail(r, product, residual, None, None, norm_weight, eps, "no", "no", reads)
