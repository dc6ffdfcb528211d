"""A failing case made small: fewest rows, then fewest elements that are not +0, then simple values.

The reducer works on concrete values, not on what they were drawn from, and knows nothing of the
kernel: it calls a predicate. Delta debugging, as in the source, first on the rows, then on the
elements of each operand; lengths along the other dims stay as they are.

Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002 (ddmin).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contract.errors import CaseError

Case: TypeAlias = dict[str, Any]
Floats: TypeAlias = NDArray[np.float64]

#: Elements of an operand that are simplified one by one; beyond that only all at once.
MOST_ELEMENTS = 16
# Significand bits that are tried, in this order; 1 leaves a power of two.
_BITS = (1, 2, 3, 4, 7)


@dataclass(frozen=True)
class Shrunk:
    """The result of `shrink`.

    Attributes:
        case: the smallest case that was seen to fail; its arrays are copies.
        rows: indices of the remaining rows in the case that was given; all of them if it has none.
        calls: calls of the predicate, the first one included.
        exhausted: whether the budget ended the search, so that a smaller case may exist.
    """

    case: Case
    rows: tuple[int, ...]
    calls: int
    exhausted: bool


def shrink(
    case: Mapping[str, Any],
    fails: Callable[[Case], bool],
    *,
    row_axis: Mapping[str, int | None] | None = None,
    keep: Collection[str] = (),
    budget: int = 300,
) -> Shrunk:
    """A small case that still fails.

    Args:
        case: operand name -> float64 array; what is no array (a scalar) is passed on as it is.
        fails: whether a case fails; it gets copies. An exception counts as not failing: a case
            outside what the kernel accepts would hide the fault that is looked for.
        row_axis: operand -> the axis along which its rows lie, or None if the rows share it. An
            operand that is not named is shared.
        keep: operands whose values stay (ids, lengths); their rows are still taken out.
        budget: the most calls of `fails`.

    Raises CaseError if the case does not fail.
    """
    arrays = {name: np.array(a) for name, a in case.items() if isinstance(a, np.ndarray)}
    axes = {name: axis for name, axis in (row_axis or {}).items() if axis is not None}
    counts = {name: arrays[name].shape[axis] for name, axis in axes.items()}
    if len(set(counts.values())) > 1:
        raise CaseError(f"rows along the row axes differ: {counts}; each operand needs as many")
    search = _Search(dict(case) | arrays, fails, axes, next(iter(counts.values()), 0))
    if not search.accept(search.case):
        raise CaseError(f"operands {', '.join(case)}: the case does not fail, nothing to shrink")
    # Operands with rows first: what they leave out often needs no counterpart in the shared ones.
    values = sorted(set(arrays) - set(keep), key=lambda name: (name not in axes, name))
    # Each phase leaves calls for the next: many small elements say less than few simple ones.
    phases: tuple[tuple[float, list[Callable[[], None]]], ...] = (
        (0.3, [partial(_fewest_rows, search)]),
        (0.75, [partial(_fewest_elements, search, name) for name in values]),
        (1.0, [partial(_simpler_values, search, name) for name in values]),
    )
    exhausted, before = False, None
    while not exhausted and before is not search.case:
        before = search.case
        for share, steps in phases:
            search.limit = max(int(share * budget), search.calls)
            try:
                for step in steps:
                    step()
            except _BudgetSpent:
                exhausted = True
        phases = tuple((1.0, steps) for _, steps in phases)
    return Shrunk(search.case, tuple(search.rows), search.calls, exhausted)


class _BudgetSpent(Exception):
    """A phase has used its calls."""


class _Search:
    """The smallest failing case so far, and the calls it took."""

    def __init__(
        self, case: Case, fails: Callable[[Case], bool], axes: Mapping[str, int], rows: int
    ) -> None:
        self.case, self.fails, self.axes = case, fails, axes
        self.rows: Sequence[int] = range(rows)
        self.calls, self.limit = 0, 1

    def accept(self, candidate: Case) -> bool:
        """Whether the candidate fails; then it becomes the case."""
        if self.calls >= self.limit:
            raise _BudgetSpent
        self.calls += 1
        # A kernel may write into its operands.
        copies = {k: np.array(a) if isinstance(a, np.ndarray) else a for k, a in candidate.items()}
        try:
            failed = bool(self.fails(copies))
        # The kernel may raise anything; what it cannot run is no smaller failing case.
        except Exception:  # noqa: BLE001
            return False
        if failed:
            self.case = candidate
        return failed

    def accept_values(self, name: str, values: Floats) -> bool:
        """Whether the case fails with these values of one operand."""
        return self.accept(self.case | {name: values})


def _fewest_rows(search: _Search) -> None:
    full, rows = search.case, list(search.rows)

    def fails_with(kept: Sequence[int]) -> bool:
        taken = {name: np.take(full[name], kept, axis) for name, axis in search.axes.items()}
        failed = search.accept(full | taken)
        if failed:
            search.rows = [rows[i] for i in kept]
        return failed

    _ddmin(range(len(rows)), fails_with)


def _fewest_elements(search: _Search, name: str) -> None:
    full = search.case[name]
    places = np.flatnonzero(_not_plus_zero(full))

    def fails_with(kept: Sequence[int]) -> bool:
        values = np.zeros_like(full)
        chosen = places[list(kept)]
        values.flat[chosen] = full.flat[chosen]
        return search.accept_values(name, values)

    if places.size and not fails_with(()):
        _ddmin(range(places.size), fails_with)


def _ddmin(items: Sequence[int], fails_with: Callable[[Sequence[int]], bool]) -> None:
    """Offers smaller and smaller selections of items; what fails is the selection from then on."""
    parts = 2
    while len(items) > 1:
        cuts = [len(items) * i // parts for i in range(parts + 1)]
        chunks = [items[a:b] for a, b in itertools.pairwise(cuts)]
        smaller = next((chunk for chunk in chunks if fails_with(chunk)), None)
        if smaller is not None:
            items, parts = smaller, 2
            continue
        # With two parts each is the other's complement.
        rests = ([*items[:a], *items[b:]] for a, b in itertools.pairwise(cuts) if parts > 2)
        rest = next((rest for rest in rests if fails_with(rest)), None)
        if rest is not None:
            items, parts = rest, max(parts - 1, 2)
        elif parts < len(items):
            parts = min(2 * parts, len(items))
        else:
            return


def _simpler_values(search: _Search, name: str) -> None:
    """Tries 1, -1, powers of two and few bits for all elements at once, then one by one."""
    places = np.flatnonzero(_not_plus_zero(search.case[name]))
    _simplify(search, name, places)
    if 1 < places.size <= MOST_ELEMENTS:
        for place in places:
            _simplify(search, name, place)


def _simplify(search: _Search, name: str, places: Any) -> None:
    now = search.case[name]
    for candidate in _simpler(now.flat[places]):
        # Values that round to what they are already would cost a call and gain nothing.
        if not np.array_equal(candidate, now.flat[places], equal_nan=True):
            values = now.copy()
            values.flat[places] = candidate
            if search.accept_values(name, values):
                return


def _simpler(values: Floats) -> Iterator[Floats]:
    """Simpler values of any format that holds these, the simplest first."""
    yield np.ones_like(values)
    yield np.copysign(1.0, values)
    finite = np.isfinite(values)
    significand, exponent = np.frexp(np.where(finite, values, 0.0))
    for bits in _BITS:
        # Toward zero, because the next power of two may lie beyond the format.
        cut = np.ldexp(np.trunc(np.ldexp(significand, bits)), exponent - bits)
        yield np.where(finite, cut, values)


def _not_plus_zero(values: Floats) -> NDArray[np.bool_]:
    return np.asarray((values != 0.0) | np.signbit(values))
