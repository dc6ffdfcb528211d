"""Speed as ratios measured in one run: `python tests/bench/run.py [ranges w4 ...]`. Prints each, exits 1 if one is missed.

A ratio is the best of several passes of each side, taken in turn on one thread, in processor time: neighbours on the
machine stretch the clock.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
BENCHES = ("rounder", "ranges", "rows", "w4", "eager", "attention", "smollm2", "ptx", "sweep")


def best(*calls: Callable[[], object], passes: int = 9, each: Sequence[int] = ()) -> list[float]:
    """Least processor time of each call in seconds, the calls taken in turn, each so often in a pass."""
    times = [float("inf")] * len(calls)
    for call in calls:
        call()
    for _ in range(passes):
        for i, (call, count) in enumerate(zip(calls, each or (1,) * len(calls), strict=True)):
            for _ in range(count):
                start = time.thread_time()
                call()
                times[i] = min(times[i], time.thread_time() - start)
    return times


def main(names: Sequence[str]) -> int:
    import torch

    from contract.allocator import keep_freed_memory

    if unknown := set(names) - set(BENCHES):
        print(f"no bench {', '.join(sorted(unknown))}; benches are {', '.join(BENCHES)}")
        return 2
    # as where kernels are judged, for both sides: pages mapped anew for each array would be what is measured
    keep_freed_memory()
    torch.set_num_threads(1)
    missed = 0
    for bench in names or BENCHES:
        for name, value, limit in importlib.import_module(f"bench_{bench}").measure():
            # a limit below zero is an upper bound of the ratio
            good = value >= limit if limit > 0 else value <= -limit
            sign = ">=" if limit > 0 else "<="
            print(
                f"{'ok  ' if good else 'MISS'} {name}: {value:,.4g} ({sign} {abs(limit):,.4g})",
                flush=True,
            )
            missed += not good
    print(f"numpy {np.__version__}, one thread")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
