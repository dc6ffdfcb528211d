"""Causal convolution of four taps with a history, then SiLU: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading

TAPS = 4


def conv4_ring_silu(
    r: Reading, x: Quantity, weight: Quantity, past: Quantity, slot: Quantity | None, layout: str
) -> dict[str, Quantity]:
    """y_t = silu(sum_i w_i x_{t-3+i}) of each channel; the columns before the first come from the history.

    Args:
        x: (channels, steps) bf16, the new columns in order of time; a row is one channel.
        weight: (channels, taps) bf16, four taps; the last one meets the newest column.
        past: (channels, kept) bf16, the last 3 or 4 columns.
        slot: () int32, the place in a ring that the next column is written to, which holds the oldest; absent where the
            history lies in order of time.
        layout: 'ring', new columns replace the oldest ones in place, or 'shift', the history is in order of time and
            moves.

    Rounding points:
        sum: the four products' sum (two_step).
        out: silu of it, always.

    Freedoms: the sum in any order, its products rounded or fused (they are exact but for subnormals); silu as a quotient
        or through the sigmoid, exp within 2 fp32 ulps.

    Specials: as the steps have them; minus infinity gives NaN or a zero.

    Source: Dao, causal-conv1d, 2023 (causal_conv1d_update with conv_state_indices); Gu and Dao, Mamba, 2023, section 3.4.
    """
    steps, kept = x.shape[-1], past.shape[-1]
    start = 0 if slot is None else int(r.integers(slot))
    columns = r.concat([r.take(past, (start + np.arange(kept)) % kept, axis=1), x])
    first = kept - TAPS + 1
    window = np.arange(TAPS) + np.arange(first, first + steps)[:, None]
    products = r.take(columns, window, axis=1) * weight.reshape(weight.shape[0], 1, TAPS)
    total = r.round("sum", r.sum(products, name="sum").reshape(*x.shape))
    if slot is None:
        newest = steps + np.arange(kept)
    else:
        # the place of age p is written by columns p, p + kept, ...: the last of them, or what was there
        age = (np.arange(kept) - start) % kept
        newest = age + kept * ((steps + kept - 1 - age) // kept)
    return {"new_past": r.take(columns, newest, axis=1), "out": r.round("out", r.silu(total))}
