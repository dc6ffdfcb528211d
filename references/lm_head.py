"""Output head on one row of each sequence: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading


def lm_head(r: Reading, x: Quantity, weight: Quantity, last: Quantity) -> Quantity:
    """Logits of the next token: y[b, n] = sum_k x[b, last[b], k] W[n, k].

    Args:
        x: (rows, t, k) bf16, hidden states of `rows` sequences of t positions.
        weight: (n, k) bf16, one row a token.
        last: (rows,) int32, the position that is read, 0 .. t - 1: the last that is no padding.

    Rounding points:
        out: the logits.

    Freedoms: the sum in any order.

    Specials: as linear; what the other positions hold, NaN included, is not read.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.4 (the layer before the softmax).
    """
    kept = x[np.arange(x.shape[0]), r.integers(last)]
    return r.round("out", r.dot(kept, weight.swapaxes(-1, -2)))
