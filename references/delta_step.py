"""One step of the gated delta rule: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def delta_step(
    r: Reading, q: Quantity, k: Quantity, v: Quantity, beta: Quantity, g: Quantity, state: Quantity
) -> dict[str, Quantity]:
    """Decay, correct and read the state of each value head.

    S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T (q / sqrt(dk)).

    Args:
        q, k: (heads, dk) fp32, normalised before; a row is one key head, which serves `group` value heads in order.
        v: (heads, group, dv) bf16 or fp32.
        beta: (heads, group) bf16 or fp32, the rate of the correction, 0 to 1.
        g: (heads, group) fp32, the logarithm of the decay, at most 0.
        state: (heads, group, dk, dv) fp32, keys along rows, values along columns.

    Rounding points:
        state: the new state, fp32, always; it is read in this format.
        out: what is read, bf16 (once) or fp32.

    Freedoms: both sums over keys in any order; the outer product fused or not; exp within 2 fp32 ulps; q divided by
        sqrt(dk) or multiplied with its reciprocal.

    Specials: as the steps have them; a decay of 0 (g = -inf) clears a finite state.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024, section 3.2, equation 10.
    """
    heads, group, dk, dv = state.shape
    decay = r.exp(g).reshape(heads, group, 1, 1)
    kept = state * decay
    memory = r.dot(k.reshape(heads, 1, 1, dk), kept, name="memory")
    rate = beta.reshape(heads, group, 1, 1)
    correction = (v.reshape(heads, group, 1, dv) - memory) * rate
    updated = r.fma(k.reshape(heads, 1, dk, 1), correction, kept)
    new_state = r.observed("new_state", r.round("state", updated))
    root = float(dk) ** 0.5
    scaled = r.union(q / root, q * (1.0 / root)).reshape(heads, 1, 1, dk)
    read = r.dot(scaled, new_state, name="read")
    return {"new_state": new_state, "out": r.round("out", read.reshape(heads, group, dv))}
