"""The largest logit of each row: what the kernel must compute."""

from __future__ import annotations

import math

from contract.readings.base import Quantity, Reading


def argmax_rows(r: Reading, logits: Quantity) -> dict[str, Quantity]:
    """ids[i] = the lowest index of row i's largest logit; flags[i] = 1 where that row must not be trusted.

    Nothing is rounded: both outputs are exact.

    Args:
        logits: (rows, n) bf16 (fp32 under float32_logits); -inf where a token is masked.

    Returns:
        ids: (rows,) int32. A NaN counts as the largest value: the first one is picked.
        flags: (rows,) uint8, 1 where the row holds a NaN or +inf, or is -inf everywhere; else 0.

    Specials: -0 and +0 are equal; subnormals are told apart.

    Source: torch.argmax and numpy.argmax ("the first occurrence"), also for NaN.
    """
    return {"ids": r.pick_max(logits), "flags": untrusted(r, logits)}


def untrusted(r: Reading, logits: Quantity) -> Quantity:
    """1 where a row holds a NaN or +inf, or nothing but -inf; else 0: (rows,)."""
    top = r.max(logits)[:, 0]
    # a comparison with NaN is false
    finite = r.where(r.less(r.exactly(-math.inf), top), r.exactly(0), 1.0)
    return r.where(r.less(top, math.inf), finite, 1.0)
