"""How many stress rows of 4096 bf16 values one thread draws and expands in a second.

Run as `python tests/bench/bench_rows.py`; the exit code is 1 below the limit.
"""

from __future__ import annotations

import sys
import time

from contract import rows, strategies

N = 4096
BLOCKS = 8
# Best of so many, because a neighbour on the machine takes up to half of one pass.
PASSES = 20
LIMIT = 8000.0


def measure() -> list[tuple[str, float, float]]:
    """(name, value, least value), in rows a second of this thread's processor time, best of 20."""
    strategies.draw_blocks(0, 1)
    return [("stress rows", max(_rate(seed) for seed in range(PASSES)), LIMIT)]


def _rate(seed: int) -> float:
    start = time.thread_time()
    count = 0
    for block in strategies.draw_blocks(seed, BLOCKS):
        count += len(rows.expand(block, N, "bf16"))
    return count / (time.thread_time() - start)


if __name__ == "__main__":
    results = measure()
    for name, value, least in results:
        print(f"{name}: {value:,.0f} rows/s (>= {least:.0f})")
    sys.exit(any(value < least for _, value, least in results))
