"""A residual sum and the layer norm that reads it: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.layer_norm import layer_norm


def add_layer_norm(
    r: Reading,
    x: Quantity,
    residual: Quantity,
    weight: Quantity,
    bias: Quantity,
    eps: float,
    reads: str,
) -> dict[str, Quantity]:
    """total = x + h; out = (total - m) / sqrt(v + eps) * w + b, m and v mean and variance of the row that is read.

    Args:
        x: (rows, d) bf16, the branch (what attention or the MLP gave).
        residual: (rows, d) bf16, the stream h before the branch.
        weight, bias: (d,) bf16.
        eps: added to the variance, in units of x squared; positive.
        reads: 'stored', the norm reads the rounded total, or 'unrounded', the sum before the store.

    Rounding points:
        total: the stream that is stored, always.
        normed, scaled: inside the norm (each_op only).
        out: the normed stream, always.

    Freedoms: as layer_norm with two passes. Merged moments (torch's F.layer_norm) are allowed only where they lie in that
        range: they do on ordinary rows, and give NaN where squares overflow.

    Specials: as layer_norm; an infinity of one sign in the branch and of the other in the stream is NaN.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016; Xiong et al., 2020 (norms before each sub-layer).
    """
    stream = x + residual
    total = r.round("total", stream)
    source = total if reads == "stored" else stream
    return {"total": total, "out": layer_norm(r, source, weight, bias, eps, "two_pass")}
