"""SwiGLU: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

#: Below it 1 / (1 + exp(-x)) leaves the fp32 normal numbers.
SIGMOID_NORMAL = -87.0


def swiglu(r: Reading, gate: Quantity, up: Quantity, form: str) -> Quantity:
    """Gated SiLU: y = silu(gate) * up, silu(x) = x / (1 + exp(-x)).

    Args:
        gate, up: (rows, n) bf16 (fp32 under float32), the products of the two input projections.
        form: 'plain' is x / (1 + exp(-x)), or x times the reciprocal; 'folded' is x times a sigmoid that is formed at |x|:
            s = 1 / (1 + exp(|x|)), and 1 - s where x is not negative.

    Rounding points:
        exp: the exponential (each_op only).
        sigmoid: the sigmoid (each_op only).
        silu: the activation.
        out: the activation times up.

    Freedoms: exp within 2 fp32 ulps; plain form as quotient or product, but below -87 the quotient alone: a flushed
    reciprocal would give zero while silu is still a normal number (a fast divide does so from a divisor of 2^126 on).

    Specials: +inf stays, -inf gives NaN, a NaN stays, a zero keeps its sign; times up.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    if form == "folded":
        small = 1.0 / (1.0 + r.round("exp", r.exp(r.abs(gate), ulps=2)))
        sigmoid = r.where(r.less(gate, 0.0), small, 1.0 - small)
        activated = gate * r.round("sigmoid", sigmoid)
    else:
        below = 1.0 + r.round("exp", r.exp(-gate, ulps=2))
        quotient = gate / below
        product = gate * r.round("sigmoid", 1.0 / below)
        activated = r.where(r.less(gate, SIGMOID_NORMAL), quotient, r.union(quotient, product))
    return r.round("out", r.round("silu", activated) * up)
