"""Soft cap of logits: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def softcap(r: Reading, x: Quantity, cap: float, division: str) -> Quantity:
    """Soft cap: y = cap * tanh(x / cap), odd and bounded by cap.

    Args:
        x: (rows, n) bf16 logits, or fp32 under the profile float32.
        cap: the bound, in units of x; positive.
        division: 'true' is x / cap, 'reciprocal' is x * (1 / cap) with 1 / cap an fp32 or wider constant.

    Rounding points:
        quotient: x / cap (each_op only).
        tanh: tanh of the quotient (each_op only).
        out: the product with cap.

    Freedoms: tanh within 2 fp32 ulps, so that fp32 outputs may pass cap by as much.

    Specials: an infinity gives cap with its sign; a NaN stays; a zero keeps its sign.

    Source: Bello et al., Neural Combinatorial Optimization with Reinforcement Learning, 2016, equation 16.
    """
    quotient = r.round("quotient", x / cap if division == "true" else x * (1.0 / cap))
    squashed = r.round("tanh", r.tanh(quotient, ulps=2))
    return r.round("out", squashed * cap)
