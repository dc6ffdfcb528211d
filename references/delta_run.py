"""A run of steps of the gated delta rule: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading


def delta_run(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    beta: Quantity,
    g: Quantity,
    state: Quantity,
    lengths: Quantity,
) -> dict[str, Quantity]:
    """The step of `delta_step`, once for each token of a sequence, from a state that is given.

    For t = 0 .. length - 1: S <- e^g_t S;  d = beta_t (v_t - S^T k_t);  S <- S + k_t d^T;  o_t = S^T (q_t / sqrt(dk)).
    Later steps are padding: they leave the state as it is, bit for bit, and their o_t is zero, whatever their rows hold.

    Args:
        q, k: (heads, steps, dk) fp32, normalised before; a row is one key head of one sequence.
        v: (heads, group, steps, dv) bf16 or fp32: the value heads that a key head serves, in order.
        beta: (heads, group, steps) bf16 or fp32, the rate of each correction, 0 to 1.
        g: (heads, group, steps) fp32, the logarithm of each decay, at most 0.
        state: (heads, group, dk, dv) fp32, before the first step.
        lengths: (heads) int32, the steps of the sequence that are its own, 0 to steps.

    The state after every step is shown: each step is judged from the state that the one before it left. Over a run no
    useful range is left, though a state that is kept in bf16 is wrong from the first steps on.

    Rounding points:
        state: the state after each step, fp32, always; it is read, and carried on, in this format.
        out: what is read, bf16 (once) or fp32.

    Freedoms: those of `delta_step`, step by step.

    Specials: as the steps have them; none of them comes from padding.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024, section 3.2, equation 10; the recurrent form in
        flash-linear-attention (fused_recurrent_gated_delta_rule) and transformers.
    """
    heads, group, steps, dv = v.shape
    dk, root = k.shape[-1], float(k.shape[-1]) ** 0.5
    own = r.integers(lengths)
    outs, nothing = [], r.exactly(np.zeros((heads, group, 1, dv)))
    for t in range(steps):
        one = slice(t, t + 1)
        kept = state * r.exp(g[..., one]).reshape(heads, group, 1, 1)
        key, query = k[:, one].reshape(heads, 1, 1, dk), q[:, one].reshape(heads, 1, 1, dk)
        memory = r.dot(key, kept, name="memory")
        correction = (v[..., one, :] - memory) * beta[..., one].reshape(heads, group, 1, 1)
        moved = r.round("state", r.fma(key.swapaxes(-1, -2), correction, kept))
        live = r.less(r.exactly(np.full((heads, 1, 1, 1), t)), r.exactly(own.reshape(-1, 1, 1, 1)))
        after = r.where(live, moved, state).reshape(heads, group, 1, dk, dv)
        state = r.observed("states", after, along=-3).reshape(heads, group, dk, dv)
        scaled = r.union(query / root, query * (1.0 / root))
        read = r.dot(scaled, state, name="read")
        outs.append(r.where(live, read, nothing))
    return {"out": r.round("out", r.concat(outs, -2))}
