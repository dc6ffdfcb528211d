"""The order in which changes are tried: few of them are of different kinds, and on different lines."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar


class _Change(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def line(self) -> int: ...


One = TypeVar("One", bound=_Change)


def in_turn(candidates: Iterable[One], rng: random.Random) -> Iterator[One]:
    """One of each kind in turn; of a kind, one of each line first."""
    kinds: dict[str, list[One]] = {}
    for one in candidates:
        kinds.setdefault(one.kind, []).append(one)
    for kind, ones in kinds.items():
        rng.shuffle(ones)
        seen: Counter[int] = Counter()
        turns: list[tuple[int, int, One]] = []
        for one in ones:
            turns.append((seen[one.line], len(turns), one))
            seen[one.line] += 1
        kinds[kind] = [one for _, _, one in sorted(turns, key=lambda turn: turn[:2])]
    # each text begins with another kind
    order = rng.sample(list(kinds.values()), len(kinds))
    for turn in range(max(map(len, order), default=0)):
        for ones in order:
            if turn < len(ones):
                yield ones[turn]
