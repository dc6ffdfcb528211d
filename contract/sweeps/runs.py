"""Outputs of runs of neighbouring fp32 inputs, most of which lie on a line that the range holds for certain.

`allowed` says yes or nothing: what it does not accept is for the range to judge (contract.ranges). It pays where a range
costs a microsecond an output and this a few nanoseconds; contract.readings.line has the argument for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel
from contract.endpoints import Array
from contract.errors import ContractError
from contract.ranges import evaluate, option_sets
from contract.readings.line import Line, LineReading, NoLine, Rounded
from contract.sweeps.space import Setting

#: Inputs of one line: where too few outputs of a run are accepted the shorter ones are tried.
LENGTHS = (1024, 32)
#: Part of a run that may be left to the range before it is cut into shorter ones.
_LEFT = 1 / 16
#: Elements that are compared at a time: their float64 temporaries stay in the cache.
_ELEMENTS = 1 << 16
#: float64's errors in a + b t, relative to the largest value, twice.
_FUZZ = 2.0**-49
#: Formats whose roundings are done here, and the magnitudes between which those are without special cases.
_FORMATS = {"fp32": (2.0**-146, 2.0**126), "bf16": (2.0**-125, 2.0**126)}


class Runs:
    """Accepts outputs of one kernel at one setting, under every combination of the profile's options."""

    def __init__(self, kernel: Kernel, setting: Setting, depths: Mapping[str, Any]) -> None:
        self.kernel, self.setting, self.depths = kernel, setting, depths
        self.options = option_sets(kernel)
        self.operand = next(o for o in kernel.inputs() if o.name == setting.swept[0])
        self.usable = len(setting.swept) == 1 and kernel.format(self.operand).name == "fp32"
        self.usable &= not self.operand.finite and self.operand.below is None
        self.usable &= all(kernel.format(o).name in _FORMATS for o in kernel.outputs())
        #: Why no line was found, once one was looked for in vain.
        self.reason = "" if self.usable else "formats"

    def allowed(self, first: int, last: int, outputs: Mapping[str, Array]) -> Array:
        """Which outputs of the inputs of bits first .. last (of one exponent) are allowed for certain.

        `outputs`: name -> storage bits, one for each input.
        """
        count = last - first + 1
        yes = np.zeros(count, bool)
        exponent = (first >> 23) & 0xFF
        if self.reason or exponent == 0xFF:
            return yes
        starts = np.arange(0, count - LENGTHS[0] + 1, LENGTHS[0])
        for length in LENGTHS:
            if not starts.size or self.reason:
                break
            left = self._judge(first, starts, length, outputs, yes)
            shorter = np.arange(0, length, LENGTHS[-1])
            starts = (starts[left > length * _LEFT][:, None] + shorter).reshape(-1)
        return yes

    def _judge(
        self, first: int, starts: Array, length: int, outputs: Mapping[str, Array], yes: Array
    ) -> Array:
        """Set `yes` where the outputs of these runs are allowed; returns how many of each run are left."""
        left = np.zeros(starts.size, np.int64)
        lines = self._lines(first, starts, length)
        if lines is None:
            return left
        half = (length - 1) / 2
        t = (np.arange(length) - half) / half
        step = max(1, _ELEMENTS // length)
        for place in range(0, starts.size, step):
            some = slice(place, place + step)
            index = _elements(starts[some], length)
            good: Array = np.ones(1, bool)
            for name, (line, fmt) in lines.items():
                part = Line(line.a[some], line.b[some], line.w[some])
                bits = outputs[name][index].reshape(-1, length)
                good = good & _between(part, t, bits, fmt)
            yes[index] = good.reshape(-1)
            left[some] = length - np.count_nonzero(good, axis=1)
        return left

    def _lines(
        self, first: int, starts: Array, length: int
    ) -> dict[str, tuple[Line, formats.Format]] | None:
        """Output -> a line of each run, with the inner width that holds under all options; None where there is none."""
        ends = np.array([first, first + 1], np.uint32).view(np.float32).astype(np.float64)
        spacing = ends[1] - ends[0]
        middle = ends[0] + spacing * (starts + (length - 1) / 2)
        run = Line(
            middle, np.full(starts.shape, spacing * (length - 1) / 2), np.zeros(starts.shape)
        )
        found: dict[str, tuple[Line, formats.Format]] = {}
        for options in self.options:
            try:
                lines = self._evaluate(run, options)
            except (NoLine, ContractError, ValueError, IndexError) as error:
                self.reason = f"{type(error).__name__}: {error}"
                return None
            for name, (line, fmt) in lines.items():
                known = found.get(name)
                if known is None:
                    found[name] = line, fmt
                    continue
                # of the two lines one is taken, less their distance
                apart = np.abs(line.a - known[0].a) + np.abs(line.b - known[0].b)
                w = np.minimum(known[0].w, line.w - apart)
                found[name] = Line(known[0].a, known[0].b, w), fmt
        return found

    def _evaluate(self, run: Line, options: Mapping[str, Any]) -> dict[str, tuple[Line, Any]]:
        """The output lines under one combination of options, in the shape of `run`."""
        kernel = self.kernel
        given: dict[str, Line] = {}
        for operand in kernel.inputs():
            dims = len(operand.dims)
            if operand is self.operand:
                given[operand.name] = _shaped(run, dims)
                continue
            bits = np.array([self.setting.fixed[operand.name]], kernel.format(operand).storage)
            value = formats.decode(bits, kernel.format(operand)).reshape((1,) * dims)
            zero = np.zeros(value.shape)
            given[operand.name] = Line(value, zero, np.where(np.isfinite(value), zero, -np.inf))
        reading = LineReading(kernel.contract, kernel.profile, self.depths, given)
        nothing = Case({}, {}, self.setting.scalars)
        inputs = {o.name: reading.operand(kernel, nothing, o) for o in kernel.inputs()}
        with np.errstate(all="ignore"):
            result = evaluate(reading, kernel, inputs, self.setting.scalars, options)
            return {
                name: (_flat(value, run.a.size, kernel.format(self._output(name))), value.fmt)
                for name, value in result.items()
            }

    def _output(self, name: str) -> Any:
        return next(o for o in self.kernel.outputs() if o.name == name)


def _elements(starts: Array, length: int) -> slice | Array:
    """The places of runs, one behind the other; a slice where nothing lies between them, which copies nothing."""
    if int(starts[-1] - starts[0]) == length * (starts.size - 1):
        return slice(int(starts[0]), int(starts[-1]) + length)
    return np.asarray((starts[:, None] + np.arange(length)).reshape(-1))


def _shaped(line: Line, dims: int) -> Line:
    """The runs along the last of so many dims; the references of elementwise kernels broadcast along all."""
    shape = (1,) * (dims - 1) + (-1,)
    return Line(line.a.reshape(shape), line.b.reshape(shape), line.w.reshape(shape))


def _flat(value: Any, count: int, fmt: formats.Format) -> Line:
    """An output before its last rounding, one line for each run, less float64's errors of a + b t."""
    if not isinstance(value, Rounded) or value.fmt.name != fmt.name:
        raise NoLine(f"an output that is not rounded to {fmt.name}")
    source = value.source
    parts = [np.asarray(x, np.float64) for x in (source.a, source.b, source.w)]
    shape = np.broadcast_shapes(*(x.shape for x in parts))
    a, b, w = (np.broadcast_to(x, shape).reshape(-1) for x in parts)
    if a.size not in (1, count):
        raise NoLine("an output of another shape")
    a, b, w = (np.broadcast_to(x, (count,)) for x in (a, b, w))
    low, high = _FORMATS[fmt.name]
    size = np.abs(a) + np.abs(b)
    most = size + np.abs(w)
    # Of one sign, or with an end beyond zero on both sides, so that both zeros lie inside: -0 and +0 compare equal here.
    # No end is a subnormal but for fp32, which NumPy rounds.
    sure = (np.abs(a) - np.abs(b) - np.abs(w) >= low) | (w - size >= low)
    return Line(a, b, np.where(sure & (most <= high), w - _FUZZ * most, -np.inf))


def _between(line: Line, t: Array, bits: Array, fmt: formats.Format) -> Array:
    """Where the bits lie between the roundings of a + b t - w and a + b t + w."""
    with np.errstate(all="ignore"):
        high = line.b[:, None] * t
        low = high + (line.a - line.w)[:, None]
        high += (line.a + line.w)[:, None]
        if fmt.name == "fp32":
            got = bits.view(np.float32)
            return np.asarray((got >= low.astype(np.float32)) & (got <= high.astype(np.float32)))
        got = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        low, high = (formats.round_normal(x, fmt, out=x) for x in (low, high))
        return np.asarray((got >= low) & (got <= high))


__all__ = ["Runs"]
