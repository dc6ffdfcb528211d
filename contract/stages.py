"""Stages that an implementation may expose, and values that serve a whole row.

A stage is checked against its own range, and what follows it is judged from the observed bits (`r.observed`). Where an
implementation keeps the stage to itself, its end is judged with the whole range, and the points that only the stage shows
are listed as not shown. A shared value (`r.shared`) is one number: the outputs of a row must be explained by one of its
fp32 candidates together, not each by another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel, take_rows
from contract.endpoints import Array, Interval, collapse, to_f32
from contract.ranges import Prepare, case_range, evaluate, option_sets
from contract.readings.base import Reading

# Candidates of a shared value that are tried; a row with more is not judged jointly.
CANDIDATES = 8192
_FP32 = formats.get("fp32")


def stage_names(kernel: Kernel) -> tuple[str, ...]:
    """Outputs that an implementation may leave out."""
    return tuple(o.name for o in kernel.outputs() if o.stage)


def observing(kernel: Kernel, outputs: Mapping[str, Array]) -> Prepare | None:
    """What sets a reading to continue from the stages among `outputs`; None where there is none."""
    shown = [
        o for o in kernel.outputs() if (o.stage or o.observed) and outputs.get(o.name) is not None
    ]
    if not shown:
        return None

    def prepare(reading: Reading, where: Mapping[str, slice]) -> None:
        for operand in shown:
            fmt = kernel.format(operand)
            place = tuple(where.get(dim, slice(None)) for dim in operand.dims)
            values = formats.decode(outputs[operand.name][place], fmt)
            reading.observed_values[operand.name] = reading.load(values, narrow=fmt.within_fp32)

    return prepare


def structure(kernel: Kernel) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The points that each stage shows, and the names of shared values, as the reference says them under any alternative
    of the profile's options: one of them alone may continue from a stage."""
    from contract.autocontrols import tiny_case
    from contract.readings.sample import SampleReading

    case = tiny_case(kernel)
    points: dict[str, tuple[str, ...]] = {}
    shared: dict[str, None] = {}
    for options in option_sets(kernel):
        reading = SampleReading(kernel.contract, kernel.profile)
        inputs = {o.name: reading.load(case.value(kernel, o), narrow=True) for o in kernel.inputs()}
        evaluate(reading, kernel, inputs, case.scalars, options)
        for stage, own in reading.stage_points.items():
            known = points.get(stage, ())
            points[stage] = (*known, *(p for p in own if p not in known))
        shared.update(dict.fromkeys(reading.shared_values))
    return points, tuple(shared)


def not_shown(points: Mapping[str, tuple[str, ...]], outputs: Mapping[str, Array]) -> list[str]:
    """Points (by stage, as a reading recorded them) of the stages that `outputs` lacks."""
    return [p for stage, own in points.items() if outputs.get(stage) is None for p in own]


def joint_refused(
    kernel: Kernel,
    case: Case,
    outputs: Mapping[str, Array],
    name: str,
    options: Mapping[str, Any] | None = None,
    depths: Mapping[str, Any] | None = None,
) -> Array:
    """Rows (of the first row dim) that no single candidate of the shared value `name` explains.

    A candidate stands for all reals nearest to it, so that a value kept wider than fp32 is among them.
    """
    rows = case.rows(kernel)
    left = np.arange(rows)
    chosen = option_sets(kernel)[0] if options is None else options
    for step in range(2 * CANDIDATES):
        offset = (step + 1) // 2 * (1 if step % 2 else -1)
        piece = take_rows(kernel, case, left)
        last = [True]
        ranges = case_range(kernel, piece, chosen, depths, prepare=_pinning(name, offset, last))
        wrong = np.zeros(len(left), bool)
        for operand in kernel.outputs():
            bits = outputs.get(operand.name)
            axis = kernel.row_axis(operand)
            if bits is None or axis is None:
                continue
            bad = ranges[operand.name].refused(np.take(bits, left, axis))
            wrong |= np.moveaxis(bad, axis, 0).reshape(len(left), -1).any(axis=1)
        left = left[wrong]
        if not left.size or (last[0] and step):
            break
    else:
        return np.zeros(rows, bool)
    refused = np.zeros(rows, bool)
    refused[left] = True
    return refused


def _pinning(name: str, offset: int, last: list[bool]) -> Prepare:
    """Sets a reading to one candidate of the shared value: `offset` fp32 values from its middle, inside its range.

    `last` is set to whether every row's candidates are used up on both sides.
    """

    def pin(x: Interval) -> Interval:
        lo, hi = (_codes(end) for end in (x.lo, x.hi))
        middle = _codes(0.5 * x.lo + 0.5 * x.hi)
        if (np.maximum(hi - middle, middle - lo) > abs(offset)).any():
            last[0] = False
        code = np.clip(middle + offset, lo, hi)
        value, below, above = (_values(code + k) for k in (0, -1, 1))
        low = np.maximum(x.lo, 0.5 * value + 0.5 * below)
        high = np.minimum(x.hi, 0.5 * value + 0.5 * above)
        return collapse(np.minimum(low, high), high, x.nan, narrow=False)

    def prepare(reading: Reading, where: Mapping[str, slice]) -> None:
        reading.pins[name] = pin

    return prepare


def _codes(x: Array) -> Array:
    return np.asarray(formats.ordered(formats.encode(to_f32(x), _FP32), _FP32), np.int64)


def _values(code: Array) -> Array:
    return np.asarray(formats.decode(formats.from_ordered(code, _FP32), _FP32))
