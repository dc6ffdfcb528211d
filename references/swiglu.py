"""SwiGLU: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

#: Below it 1 / (1 + exp(-x)) leaves the fp32 normal numbers.
SIGMOID_NORMAL = -87.0


def swiglu(r: Reading, gate: Quantity, up: Quantity, division: str) -> Quantity:
    """Gated SiLU: y = silu(gate) * up, silu(x) = x / (1 + exp(-x)).

    Args:
        gate, up: (rows, n) bf16 (fp32 under float32), the products of the two input projections.
        division: 'either' for x / (1 + exp(-x)) or x times its reciprocal, 'sigmoid' for x times a sigmoid
            that is rounded first.

    Rounding points:
        sigmoid: 1 / (1 + exp(-gate)) (each_op only).
        silu: the activation.
        out: the activation times up.

    Freedoms: exp within 2 fp32 ulps; quotient or product, but below -87 the quotient alone: a flushed reciprocal would
    give zero while silu is still a normal number (a fast divide does that from a divisor of 2^126 on).

    Specials: +inf stays, -inf gives NaN, a NaN stays, a zero keeps its sign; times up.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    below = 1.0 + r.exp(-gate, ulps=2)
    product = gate * r.round("sigmoid", 1.0 / below)
    if division == "sigmoid":
        activated = product
    else:
        quotient = gate / below
        activated = r.where(
            r.less(gate, SIGMOID_NORMAL), quotient, r.union(quotient, product)
        )
    return r.round("out", r.round("silu", activated) * up)
