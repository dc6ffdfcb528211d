"""Runs of bytes of a storage: where a tensor lies in it, and which bytes something was done to."""

from __future__ import annotations

import bisect
from typing import Any


class Spans:
    """Disjoint runs of bytes, from the first to the one past the last, sorted."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add bytes start..end-1; runs that meet become one."""
        if start >= end:
            return
        runs = self.runs
        first = bisect.bisect_left([run[1] for run in runs], start)
        last = bisect.bisect_right([run[0] for run in runs], end)
        if first < last:
            start, end = min(start, runs[first][0]), max(end, runs[last - 1][1])
        runs[first:last] = [(start, end)]

    def cover(self, start: int, end: int) -> bool:
        """Whether all of bytes start..end-1 are among them."""
        return start >= end or any(a <= start and end <= b for a, b in self.runs)


def extent(tensor: Any) -> tuple[int, int, bool]:
    """(first byte, one past the last, whether every byte between is its own) of a strided tensor in its storage."""
    size, count = tensor.element_size(), tensor.numel()
    start = tensor.storage_offset() * size
    if not count:
        return start, start, True
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((extent - 1) * step for extent, step in steps)
    return start, start + reach * size, reach == count
