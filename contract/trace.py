"""The value at each rounding point of one case: what the plain execution has there, and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel
from contract.interval import Array, Interval
from contract.judge import Outputs
from contract.ranges import apply_reading
from contract.readings.base import Quantity, Reading
from contract.readings.range import RangeReading
from contract.readings.sample import SampleReading
from contract.stages import observing


@dataclass(frozen=True)
class Point:
    """One rounding point at one element, or its extent where the element is not known.

    Attributes:
        name: of the point; fmt: what it rounds to, None where the profile does not.
        index: the element, None where the point's values do not correspond to the output's.
        before, value: of the plain execution, before and after rounding.
        low, high: what is allowed after rounding.
        count: how many values the point has.
    """

    name: str
    fmt: formats.Format | None
    index: tuple[int, ...] | None
    before: float
    value: float
    low: float
    high: float
    count: int


def points(
    kernel: Kernel,
    case: Case,
    options: Mapping[str, Any],
    shape: tuple[int, ...],
    index: tuple[int, ...],
    outputs: Outputs,
) -> list[Point]:
    """Every rounding point in order, at the element of an output of this shape.

    A point inside a structured step (the weights of a softmax) is not among them.
    """
    plain = _traced(
        lambda: SampleReading(kernel.contract, kernel.profile), kernel, case, options, {}
    )
    legal = _traced(
        lambda: RangeReading(kernel.contract, kernel.profile), kernel, case, options, outputs
    )
    found = []
    for name, (before, after) in plain.items():
        bounds = legal.get(name, (None, None))[1]
        if not isinstance(bounds, Interval) or not np.size(after):
            continue
        fmt = kernel.profile.points[name]
        found.append(_point(name, fmt, np.asarray(before), np.asarray(after), bounds, shape, index))
    return found


def _point(
    name: str,
    fmt: str | None,
    before: Array,
    after: Array,
    bounds: Interval,
    shape: tuple[int, ...],
    index: tuple[int, ...],
) -> Point:
    place = _place(after.shape, shape, index)
    known = None if fmt is None else formats.get(fmt)
    lo, hi = (np.broadcast_to(x, after.shape) for x in (bounds.lo, bounds.hi))
    if place is None:
        first, second, low = (float(np.nanmin(x, initial=np.inf)) for x in (before, after, lo))
        top = float(np.nanmax(hi, initial=-np.inf))
        return Point(name, known, None, first, second, low, top, after.size)
    wide = np.broadcast_to(before, after.shape)
    first, second, low, top = (float(x[place]) for x in (wide, after, lo, hi))
    return Point(name, known, place, first, second, low, top, after.size)


def _place(
    own: tuple[int, ...], shape: tuple[int, ...], index: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The element of a point's values that an output's element comes from, where they are broadcast to the output."""
    if len(own) > len(shape):
        return None
    tail = shape[len(shape) - len(own) :]
    if any(a not in (1, b) for a, b in zip(own, tail, strict=True)):
        return None
    return tuple(
        0 if size == 1 else i for size, i in zip(own, index[len(shape) - len(own) :], strict=True)
    )


def _traced(
    make: Any, kernel: Kernel, case: Case, options: Mapping[str, Any], outputs: Outputs
) -> dict[str, tuple[Any, Any]]:
    """Point -> its payload before and after rounding, in a reading of the whole case."""
    seen: dict[str, tuple[Any, Any]] = {}
    stages = observing(kernel, outputs) if outputs else None

    def prepare(reading: Reading, where: Mapping[str, slice]) -> None:
        if stages is not None:
            stages(reading, where)
        plain = reading.round

        def noted(point: str, x: Quantity, **how: Any) -> Quantity:
            result = plain(point, x, **how)
            seen[point] = (x.v, result.v)
            return result

        # the instance's own, in place of the class's
        vars(reading)["round"] = noted

    apply_reading(make, kernel, case, options, lambda *_: None, prepare=prepare)
    return seen
