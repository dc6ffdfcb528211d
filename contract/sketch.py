"""A few hundred outputs of a gate for the plots of a report: error against input with the allowed band, and histograms.

The error of an output is its distance from the real value, which is the reference read in float64 with no rounding at
all, in ulps of max(|real value|, rms of the row): the unit of the widest range. A kernel that rounds once, at its end, lies
within half an ulp; the band is what the contract allows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel, take_columns, take_rows
from contract.declare import Operand
from contract.interval import Array
from contract.ranges import OutputRange, apply_reading
from contract.readings.base import Change
from contract.readings.sample import Choice, SampleReading

#: Gates that are drawn: those that judge outputs by their ranges alone.
GATES = ("shapes", "stress", "exact")
# Of each gate so many cases, points of a case, and of these refused ones.
CASES, POINTS, REFUSED = 6, 60, 20
# Elements of all operands of the piece of a case that is looked at: it is read once more, in float64.
ELEMENTS = 1 << 17
#: Bars of the histogram of errors are this share of an ulp wide; what is beyond MOST ulps is in the last one.
STEP, MOST = 0.25, 8
#: Widths of ranges, in steps of the format: (least, label).
WIDTHS = ((0, "one value"), (1, "1"), (2, "2"), (3, "3-4"), (5, "5-8"), (9, "9 or more"))
# Everything float64 keeps: no step is rounded to fp32, and sums are as exact as they can be.
_UNROUNDED = Choice(wide=1.0, order="wide")


@dataclass
class Sketch:
    """What was looked at so far.

    Attributes:
        output, format, against: what is drawn, and against what; '' before the first case.
        points: (x, error, lowest allowed error, highest, whether it is refused), errors in ulps.
        errors: floor(error / STEP), at most MOST ulps to either side -> outputs.
        widths: label of WIDTHS -> outputs.
        left_out: outputs that are not finite, or whose range is not: they are not drawn.
        none: why nothing is drawn.
    """

    output: str = ""
    format: str = ""
    against: str = ""
    points: list[tuple[float, float, float, float, bool]] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)
    widths: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    none: str = ""
    cases: int = 0

    def add(
        self,
        kernel: Kernel,
        case: Case,
        ranges: Mapping[str, Any],
        outputs: Mapping[str, Array],
        options: Mapping[str, Any],
        failed: bool,
    ) -> None:
        """Look at a case; at the first ones, and at one that failed."""
        if self.cases >= CASES and not failed:
            return
        output = next(
            (
                o
                for o in kernel.outputs()
                if not o.stage and isinstance(ranges.get(o.name), OutputRange)
            ),
            None,
        )
        if output is None or output.name not in outputs:
            self.none = "the outputs are sets, not ranges"
            return
        allowed, bits = ranges[output.name], outputs[output.name]
        try:
            piece, index = _piece(kernel, case, output, allowed, bits)
            if piece is None:
                self.none = self.none or "every case is too large to be read once more"
                return
            real = _real(kernel, piece, options, output)
            self._look(kernel, piece, output, allowed, bits, index, real)
        except Exception as error:  # noqa: BLE001 - no plot turns a check red; a reference need not have a meaning unrounded
            self.none = f"the reference cannot be read without rounding ({type(error).__name__})"
            return
        self.cases += 1
        self.output, self.format = output.name, kernel.format(output).name

    def _look(
        self,
        kernel: Kernel,
        piece: Case,
        output: Operand,
        allowed: OutputRange,
        bits: Array,
        index: tuple[Any, ...],
        real: Array,
    ) -> None:
        fmt, codes = allowed.fmt, (allowed.lo[index], allowed.hi[index])
        got = formats.decode(bits[index], fmt)
        lo, hi = (_values(code, fmt) for code in codes)
        refused = allowed.refused(bits)[index]
        like = next((o for o in kernel.inputs() if o.dims == output.dims), None)
        x = real if like is None else piece.value(kernel, like)
        self.against = "its value without rounding" if like is None else f"input {like.name}"
        for label, count in _widths(codes):
            self.widths[label] += count
        with np.errstate(all="ignore"):
            scale = np.minimum(np.sqrt(np.mean(np.square(real), axis=-1, keepdims=True)), fmt.max)
            unit = formats.ulp(np.maximum(np.abs(real), scale), fmt)
            errors = [(value - real) / unit for value in (got, lo, hi)]
        table = np.stack([np.broadcast_to(a, real.shape).ravel() for a in (x, *errors)])
        finite = np.isfinite(table).all(axis=0)
        self.left_out += int(np.count_nonzero(~finite))
        table, refused = table[:, finite], np.asarray(refused).ravel()[finite]
        steps = np.clip(np.floor(table[1] / STEP), -MOST / STEP, MOST / STEP - 1).astype(int)
        self.errors.update(steps.tolist())
        chosen = [
            *_spread(np.flatnonzero(refused), REFUSED),
            *_spread(np.flatnonzero(~refused), POINTS),
        ]
        for i in sorted(chosen):
            a, b, c, d = (_short(v) for v in table[:, i].tolist())
            self.points.append((a, b, c, d, bool(refused[i])))

    def text(self) -> str:
        """As JSON; the same bytes for the same outputs."""
        if not self.points:
            return json.dumps({"none": self.none or "no output is finite"})
        found = {
            **{name: getattr(self, name) for name in ("output", "format", "against", "left_out")},
            "points": self.points,
            "errors": sorted(self.errors.items()),
            "widths": [[label, self.widths[label]] for _, label in WIDTHS if self.widths[label]],
        }
        return json.dumps(found, separators=(",", ":"))


def read(text: str) -> Sketch | None:
    """The sketch that `text` wrote; None where there is none, or it is not one."""
    try:
        raw = json.loads(text) if text else None
        if not isinstance(raw, dict):
            return None
        if "none" in raw:
            return Sketch(none=str(raw["none"]))
        return Sketch(
            str(raw["output"]),
            str(raw["format"]),
            str(raw["against"]),
            [(float(a), float(b), float(c), float(d), bool(e)) for a, b, c, d, e in raw["points"]],
            Counter({int(step): int(count) for step, count in raw["errors"]}),
            Counter({str(label): int(count) for label, count in raw["widths"]}),
            int(raw["left_out"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _piece(
    kernel: Kernel, case: Case, output: Operand, allowed: OutputRange, bits: Array
) -> tuple[Case | None, tuple[Any, ...]]:
    """A part of the case that is small enough, refused rows first, and where its outputs lie; None where none is."""
    rows, index = case.rows(kernel), [slice(None)] * len(output.dims)
    found: list[Any] = list(index)
    axis = kernel.row_axis(output)
    if axis is not None and rows > 1 and not kernel.shares:
        each = max(1, _elements(case) // rows)
        refused = np.moveaxis(allowed.refused(bits), axis, 0).reshape(rows, -1).any(axis=1)
        order = np.argsort(~refused, kind="stable")[: max(1, ELEMENTS // each)]
        found[axis] = np.sort(order)
        case = take_rows(kernel, case, found[axis])
    column = kernel.contract.column_dim
    if column in output.dims and not kernel.shares and _elements(case) > ELEMENTS:
        count = max(1, case.shape[column] * ELEMENTS // _elements(case))
        case = take_columns(kernel, case, count)
        found[output.dims.index(column)] = slice(0, count)
    # rows are taken first: an index array and a slice beside it keep the order of the dims
    return (case if _elements(case) <= 2 * ELEMENTS else None), tuple(found)


def _elements(case: Case) -> int:
    return sum(int(bits.size) for bits in case.operands.values())


def _real(kernel: Kernel, case: Case, options: Mapping[str, Any], output: Operand) -> Array:
    """The output in float64, with no rounding point rounded."""
    real = np.zeros(tuple(case.shape[dim] for dim in output.dims))

    def consume(operand: Operand, place: tuple[slice, ...], value: Array) -> None:
        if operand.name == output.name:
            real[place] = value

    change = Change(drop=frozenset(kernel.profile.points))
    apply_reading(
        lambda: SampleReading(kernel.contract, kernel.profile, choice=_UNROUNDED, change=change),
        kernel,
        case,
        options,
        consume,
    )
    return real


def _values(codes: Array, fmt: formats.Format) -> Array:
    """Values of ordered integers."""
    if fmt.kind != "float":
        return codes.astype(np.float64)
    return formats.decode(formats.from_ordered(codes.astype(np.int64), fmt), fmt)


def _widths(codes: tuple[Array, Array]) -> Iterator[tuple[str, int]]:
    width = codes[1].astype(np.int64) - codes[0].astype(np.int64)
    ends = [least for least, _ in WIDTHS[1:]]
    counts = np.bincount(np.searchsorted(ends, width.ravel(), side="right"), minlength=len(WIDTHS))
    return zip((label for _, label in WIDTHS), counts.tolist(), strict=True)


def _spread(places: Array, most: int) -> list[int]:
    """Some of them, from all parts."""
    if len(places) <= most:
        return [int(place) for place in places]
    return [int(places[int(i)]) for i in np.linspace(0, len(places) - 1, most)]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


__all__ = ["GATES", "MOST", "STEP", "WIDTHS", "Sketch", "read"]
