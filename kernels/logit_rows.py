"""Rows of logits with ties, signed zeros and specials, and torch's test of them: for kernels that pick tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


#: Rows of one logit, odd widths, one past a block.
AWKWARD = ({"rows": 3, "n": 1}, {"rows": 5, "n": 517}, {"rows": 17, "n": 1_025})
STRESS = ({"n": 64}, {"n": 5}, {"n": 257}, {"n": 2}, {"n": 1_000})
#: Many short rows, so that every kind of row is among them.
EXACT = ({"n": 512}, {"n": 64, "rows": 1_024}, {"n": 5, "rows": 1_024}, {"n": 5_000, "rows": 32})


def logits_with_ties(rng: Any, rows: int, n: int) -> Any:
    """Rows whose largest value stands at one to three places, in a quarter of them at the last one.

    In turn: the largest value is above zero, zero of either sign, below zero, or one fp32 step above another; NaN
    before or after the largest one, +inf, -inf everywhere, and -inf everywhere but once are among them.
    """
    x = -rng.integers(1, 200, (rows, n)) / 4.0
    top = rng.choice([7.75, -0.125, 0.0, 300.0], rows)
    for i, row in enumerate(x):
        places = rng.choice(n, min(n, int(rng.integers(1, 4))), replace=False)
        row[places] = top[i]
        if i % 4 == 1:
            row[-1] = top[i]
        if top[i] == 0.0:
            row[places] = np.where(rng.random(len(places)) < 0.5, -0.0, 0.0)
        if i % 8 == 3:
            # an earlier place lies one fp32 step below
            row[rng.integers(0, n)] = row.max() * (1 - np.copysign(2.0**-23, row.max()))
    x[4::16, n // 2] = np.nan
    x[5::32, rng.integers(0, n)] = np.nan
    x[6::16, rng.integers(0, n)] = np.inf
    x[7::16] = -np.inf
    x[8::16] = -np.inf
    x[8::16, n // 3] = -3e30
    return x


def untrusted(logits: torch.Tensor) -> torch.Tensor:
    """Whether a row holds a NaN or +inf, or nothing but -inf: its largest value, NaN first, is not finite."""
    return ~logits.amax(-1).isfinite()
