"""Attention of one probe over an image's tokens: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def map_pool(r: Reading, q: Quantity, k: Quantity, v: Quantity, scale: float) -> Quantity:
    """The probe's attention-weighted mean of the values, head by head: out = softmax(q scale k^T) v.

    Args:
        q: (heads, d) bf16, the projected probe, the same for all images.
        k, v: (rows, heads, tokens, d) bf16; a row of the contract is one image.
        scale: sqrt(1 / d), multiplied into q and not into the scores.

    Rounding points:
        scaled: q scale.
        scores: its products with the keys.
        weights: exp(s - max s) divided by their sum.
        out: the weighted sum of the values.

    Freedoms: sums in any order; exp within 2 fp32 ulps; divided by the sum or multiplied by its reciprocal.

    Specials: a NaN or an infinite key makes its head NaN; a weight of 0 does not hide an infinite value.

    Source: torch.nn.MultiheadAttention (multi_head_attention_forward), as SigLIP's pooling head calls it; Zhai et al.,
    Scaling Vision Transformers, 2022, section 3.4.
    """
    heads, d = q.shape
    scaled = r.round("scaled", q * scale).reshape(1, heads, 1, d)
    scores = r.round("scores", r.dot(scaled, k.swapaxes(2, 3), name="scores"))
    e = r.exp(scores - r.max(scores))
    total = r.sum(e, name="total")
    weights = r.round("weights", r.union(e / total, e * (1.0 / total)))
    return r.round("out", r.dot(weights, v, name="values")[:, :, 0, :])
