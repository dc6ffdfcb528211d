"""A copy of a state at one step: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading


def snapshot(r: Reading, states: Quantity, step: Quantity) -> Quantity:
    """out[b] = states[b, step[b]].

    A move: no bit changes. What a later step writes to `states` does not reach the copy.

    Args:
        states: (rows, steps, d) bf16 rows, or fp32 states under float32, of each step.
        step: (rows,) int32, the step after which the copy is taken, counted from 0.

    Specials: NaN stays NaN, subnormals and the sign of zero are kept.
    """
    rows, steps, d = states.shape
    flat = states.reshape(rows * steps, d)
    return r.take(flat, steps * np.arange(rows) + r.integers(step))
