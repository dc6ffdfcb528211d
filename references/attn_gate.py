"""Sigmoid gate of an attention's output: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def attn_gate(r: Reading, o: Quantity, fused: Quantity) -> Quantity:
    """out = o * sigmoid(g), g the second half of each head's fused row [query | gate].

    Args:
        o: (rows, heads, d) bf16, the attention's output.
        fused: (rows, heads, width) bf16, what the query projection gave; width = 2 d.

    Rounding points:
        gate: the sigmoid.
        out: always.

    Freedoms: exp within 2 fp32 ulps.

    Source: Qiu et al., Gated Attention for Large Language Models, 2025.
    """
    gate = r.round("gate", r.sigmoid(fused[..., o.shape[2] :]))
    return r.round("out", o * gate)
