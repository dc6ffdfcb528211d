"""Gate and up products with SwiGLU behind them: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.swiglu import swiglu


def linear_swiglu(r: Reading, x: Quantity, gate_weight: Quantity, up_weight: Quantity) -> Quantity:
    """y = silu(x G^T) * (x U^T), the activation as in `swiglu`.

    Args:
        x: (rows, k) bf16.
        gate_weight, up_weight: (n, k) bf16, G and U.

    Rounding points:
        gate, up: the products (each only).
        silu: the activation (each only).
        exp, sigmoid: inside the activation, rounded by no profile.
        out: the result.

    Freedoms: both sums in any order; those of swiglu.

    Specials: as linear, then as swiglu.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    gate = r.round("gate", r.dot(x, gate_weight.swapaxes(-1, -2)))
    up = r.round("up", r.dot(x, up_weight.swapaxes(-1, -2)))
    return swiglu(r, gate, up, "plain")
