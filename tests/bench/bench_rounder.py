"""The rounder against gfloat's, on ordinary float64 data."""

from __future__ import annotations

from functools import partial

import numpy as np
from run import best

from contract.formats import round_to


def measure() -> list[tuple[str, float, float]]:
    """(name, ratio, least ratio) for each format."""
    import gfloat
    from gfloat import formats as known

    x = np.random.default_rng(0).standard_normal(1 << 15)
    table = {
        "bf16": known.format_info_bfloat16,
        "fp16": known.format_info_binary16,
        "e4m3fn": known.format_info_ocp_e4m3,
    }
    found = []
    for name, info in table.items():
        ours, theirs = best(partial(round_to, x, name), partial(gfloat.round_ndarray, info, x))
        found.append((f"rounder {name}, times gfloat", theirs / ours, 5.0))
    return found
