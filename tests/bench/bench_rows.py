"""How many stress rows of 4096 bf16 values one thread draws and expands in a second."""

from __future__ import annotations

import time

from contract import rows, strategies

N = 4096
BLOCKS = 8
# Best of so many, because a neighbour on the machine takes up to half of one pass.
PASSES = 60
LIMIT = 8000.0


def measure() -> list[tuple[str, float, float]]:
    """(name, value, least value), in rows a second of this thread's processor time, best of 60."""
    strategies.draw_blocks(0, 1)
    return [("stress rows", max(_rate(seed) for seed in range(PASSES)), LIMIT)]


def _rate(seed: int) -> float:
    start = time.thread_time()
    count = 0
    for block in strategies.draw_blocks(seed, BLOCKS):
        count += len(rows.expand(block, N, "bf16"))
    return count / (time.thread_time() - start)
