"""A chunk of up to 64 steps of the gated delta rule at once: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading

CHUNK = 64


def delta_chunk64(
    r: Reading, q: Quantity, k: Quantity, v: Quantity, beta: Quantity, g: Quantity, state: Quantity
) -> dict[str, Quantity]:
    """The steps of `delta_step` as products of matrices (WY form).

    G_i = g_1 + ... + g_i;  D_ij = e^(G_i - G_j) for i >= j;  L = strictly lower part of ((beta k) k^T) D;
    (I + L) U = beta v;  (I + L) W = beta k e^G;  V = U - W S;
    o = (q' e^G) S + ((q' k^T) D) V, q' = q / sqrt(dk);  S <- e^(G_C) S + (k e^(G_C - G))^T V.

    Args:
        q, k: (heads, steps, dk) fp32, normalised before; a row is one key head, which serves `group` value heads in order.
        v: (heads, group, steps, dv) bf16.
        beta: (heads, group, steps) bf16, the rate of each correction, 0 to 1.
        g: (heads, group, steps) fp32, the logarithm of each decay, at most 0.
        state: (heads, group, dk, dv) fp32, before the first step.

    Steps from the number given to 64 are padding of the kernel's own and leave no trace.

    Rounding points: all that is stored on the way, in fp32, each judged from what was stored before it.
        cumulative: G.
        new_values, decayed_keys: U and W.
        correction: V.
        state: the new state.
        out: bf16.

    Freedoms: every sum in any order, through substitution for U and W; exp within 2 fp32 ulps; q divided by sqrt(dk) or
        multiplied with its reciprocal. U and W through an explicit inverse of I + L have another bound: another contract.

    Specials: finite values only.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024, section 3.3; Yang, Wang, Zhang, Shen and Kim,
        Parallelizing Linear Transformers with the Delta Rule, 2024, section 3 (WY form).
    """
    heads, group, steps = v.shape[:3]
    dk = k.shape[-1]
    lower = np.tril(np.ones((steps, steps)))
    whole, strict = r.exactly(lower), r.exactly(np.tril(lower, -1))
    sums = r.dot(whole, g.reshape(heads, group, steps, 1), name="cumulative")
    stored = r.round("cumulative", sums.reshape(heads, group, steps))
    total = r.observed("cumulative", stored).reshape(heads, group, steps, 1)
    # above the diagonal, where e^(G_i - G_j) may overflow, the difference is made 0
    decay = r.exp((total - total.swapaxes(-1, -2)) * whole)
    grown = r.exp(total)

    keys, rate = k.reshape(heads, 1, steps, dk), beta.reshape(heads, group, steps, 1)
    rated = keys * rate
    across = keys.swapaxes(-1, -2)
    system = r.dot(rated, across, name="products") * decay * strict
    new_values = r.solve("new_values", system, v * rate, point="new_values")
    decayed_keys = r.solve("decayed_keys", system, rated * grown, point="decayed_keys")
    corrected = r.dot(-decayed_keys, state, start=new_values, name="memory")
    correction = r.observed("correction", r.round("correction", corrected))

    root = float(dk) ** 0.5
    scaled = r.union(q / root, q * (1.0 / root)).reshape(heads, 1, steps, dk)
    attention = r.dot(scaled, across, name="products") * decay * whole
    left = r.concat([scaled * grown, attention], -1)
    read = r.dot(left, r.concat([state, correction], -2), name="read")

    last = total[..., -1:, :]
    held = keys * r.exp(last - total)
    kept = state * r.exp(last)
    updated = r.dot(held.swapaxes(-1, -2), correction, start=kept, name="update")
    return {"out": r.round("out", read), "new_state": r.round("state", updated)}
