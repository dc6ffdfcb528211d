"""In which order the kernels of a run are judged: each job is all checks of one kernel that are to be done."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from contract import registry
from contract.availability import modules
from contract.checks import Check
from contract.inputs import size_of


class Jobs:
    """The jobs that are left, taken by several threads.

    A judge keeps to one contract while it lasts, because the kernels of a contract share workers. The most expensive
    contract comes first, so that no long one is left for the end; those that need libraries come when the others are
    done, and those that need several last, because the libraries are imported meanwhile.
    """

    def __init__(self, checks: Iterable[Check]) -> None:
        groups: dict[str, list[Check]] = defaultdict(list)
        for check in checks:
            groups[json.dumps(check.spec, sort_keys=True)].append(check)
        wanted = {
            (c.spec["name"], c.requires, c.engine) for c in chain.from_iterable(groups.values())
        }
        self._libraries: dict[str, int] = defaultdict(int)
        for name, requires, engine in wanted:
            count = len(modules(requires, engine))
            self._libraries[name] = max(self._libraries[name], count)
        self._lock = threading.Lock()
        self._left: dict[str, list[list[Check]]] = defaultdict(list)
        for group in sorted(groups.values(), key=_cost):
            self._left[group[0].spec["name"]].append(group)
        self._taken: dict[str, int] = defaultdict(int)

    def __len__(self) -> int:
        return sum(map(len, self._left.values()))

    def take(self, last: str = "") -> list[Check]:
        """The next job of a judge whose last one was of the contract `last`; [] where none is left."""
        with self._lock:
            if not self._left:
                return []
            name = last if last in self._left else self._next()
            job = self._left[name].pop()
            self._taken[name] += 1
            if not self._left[name]:
                del self._left[name]
            return job

    def _next(self) -> str:
        """The contract with the most work left, one that no judge is at before one that is shared."""
        return min(
            self._left,
            key=lambda name: (
                self._libraries[name],
                self._taken[name] > 0,
                -sum(map(_cost, self._left[name])),
                name,
            ),
        )


def _cost(job: list[Check]) -> float:
    """How long a job takes, roughly: elements of its shapes, rounding points, checks."""
    spec = job[0].spec
    contract = registry.get(spec["name"])
    size = sum(size_of(shape) for shape in contract.shapes)
    points = contract.profile(spec["profile"]).rounded_points() or (1,)
    return float(size * len(points) * len(job))
