"""Scale and bias of image-text logits: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def logit_scale(r: Reading, logits: Quantity, scale: Quantity, bias: Quantity) -> Quantity:
    """out = logits * exp(scale) + bias.

    Args:
        logits: (rows, n) fp32 (bf16 under each_op), products of normed text and image rows.
        scale: () of the same format, the logarithm of the factor (log 10 at the start of training).
        bias: () of the same format (-10 at the start of training).

    Rounding points:
        factor: exp(scale) (each_op only).
        scaled: the product (each_op only).
        out: the sum.

    Freedoms: exp within 2 fp32 ulps; the product in fp32 or wider where it is not rounded, hence fused with
    the sum or not.

    Specials: infinity times 0, and infinities of both signs, give NaN.

    Source: Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023, section 3.2 (t' and b).
    """
    factor = r.round("factor", r.exp(scale, ulps=2))
    return r.round("out", r.round("scaled", logits * factor) + bias)
