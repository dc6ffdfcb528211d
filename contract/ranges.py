"""The allowed outputs of a case, computed in chunks, and the comparison of an implementation's bits with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel
from contract.declare import Operand
from contract.deferred import Sparse
from contract.errors import DeclarationError
from contract.interval import MAY, ONLY, Array, Interval
from contract.readings.base import Change, Quantity, Reading
from contract.readings.range import RangeReading
from contract.sets import Allowed, Choices, OutputSet, placed

# Elements of one operand that are read at a time: the temporaries of a chunk stay in the cache, and memory stays
# bounded whatever the shape.
CHUNK = 1 << 18


@dataclass
class OutputRange(Allowed):
    """Allowed bits of one output: ordered integers lo <= hi and the NaN state (None: no NaN anywhere).

    `widest` is in ulps of max(|y|, rms of the row).
    """

    fmt: formats.Format
    lo: Array
    hi: Array
    nan: Array | None
    widest: float = 0.0

    def _by_row(self) -> tuple[str, ...]:
        return ("lo", "hi") if self.nan is None else ("lo", "hi", "nan")

    @property
    def size(self) -> int:
        return int(self.lo.size)

    def one_value(self) -> Array:
        """Where exactly one value is allowed."""
        single = self.lo == self.hi
        if self.nan is None:
            return np.asarray(single)
        return np.asarray((single & (self.nan == 0)) | (self.nan == ONLY))

    def refused(self, bits: Array) -> Array:
        """Where the observed bits are not allowed."""
        got = codes_of_bits(bits, self.fmt)
        bad = (got < self.lo) | (got > self.hi)
        if not self.fmt.has_nan:
            return np.asarray(bad)
        if self.nan is None and self.fmt.has_inf:
            # the codes of NaN lie beyond those of the infinities
            return np.asarray(bad)
        is_nan = formats.is_nan(bits, self.fmt)
        if self.nan is None:
            return np.asarray(bad | is_nan)
        return np.asarray(np.where(is_nan, self.nan == 0, bad | (self.nan == ONLY)))

    def ends(self, index: tuple[int, ...]) -> tuple[Array, Array, int]:
        """Bits of both ends and the NaN state of one element."""
        state = 0 if self.nan is None else int(self.nan[index])
        lo, hi = (np.asarray(x[index], np.int64) for x in (self.lo, self.hi))
        if self.fmt.kind != "float":
            return lo, hi, state
        return formats.from_ordered(lo, self.fmt), formats.from_ordered(hi, self.fmt), state


CaseRange = Mapping[str, OutputRange]

#: Sets up a reading of one piece (dim -> slice) before the reference runs: observed stages, pinned values.
Prepare = Callable[[Reading, Mapping[str, slice]], None]


def evaluate(
    reading: Reading,
    kernel: Kernel,
    inputs: Mapping[str, Any],
    scalars: Mapping[str, float],
    options: Mapping[str, Any],
    parameters: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the reference in a reading; returns output name -> payload."""
    contract = kernel.contract
    settings: dict[str, Any] = {name: None for name in (o.name for o in contract.inputs())}
    # a reference read with other parameters (a fault) sees the operands that exist under those
    there = {o.name for o in contract.inputs(parameters or kernel.parameters)}
    settings.update({name: reading.wrap(value) for name, value in inputs.items() if name in there})
    settings.update(scalars)
    settings.update(parameters or kernel.parameters)
    settings.update(options)
    result = contract.reference(reading, **settings)
    names = [o.name for o in kernel.outputs()]
    if isinstance(result, Quantity):
        result = {names[0]: result}
    elif isinstance(result, tuple):
        result = dict(zip(names, result, strict=True))
    # a stage is what the contract computes, not the observed bits that the rest continues from
    values = {name: x.v for name, x in result.items()} | reading.whole_stages()
    if set(values) != set(names):
        raise DeclarationError(
            f"{kernel.id}: the reference returned {sorted(values)}, outputs are {names}"
        )
    return {name: values[name] for name in names}


def option_sets(kernel: Kernel) -> list[dict[str, Any]]:
    """Every combination of the profile's listed alternatives; one of them must explain all outputs of a launch."""
    keys = list(kernel.profile.options)
    lists = [v if isinstance(v, tuple) else (v,) for v in kernel.profile.options.values()]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]


def _steps(kernel: Kernel, shape: Mapping[str, int]) -> dict[str, int]:
    """How many rows and columns a piece has: no operand of it has more than CHUNK elements, where cuts can see to that.

    The largest operand is halved first, along the rows where it has them: so a matrix product, whose matrices share
    neither rows nor columns, is cut into tiles.
    """
    contract = kernel.contract
    if not contract.row_dims or kernel.shares:
        return {}
    steps = {dim: shape[dim] for dim in (contract.row_dims[0], contract.column_dim) if dim}
    operands = (*kernel.inputs(), *kernel.outputs())
    while True:
        found = []
        for operand in operands:
            size = math.prod(steps.get(d, shape[d]) for d in operand.dims)
            cuts = [d for d in steps if d in operand.dims and steps[d] > 1]
            if size > CHUNK and cuts:
                found.append((size, cuts[0]))
        if not found:
            return steps
        dim = max(found)[1]
        steps[dim] = -(-steps[dim] // 2)


def chunks(kernel: Kernel, case: Case) -> Iterator[tuple[dict[str, slice], Case]]:
    """Pieces of a case along the first row dim and the column dim: (dim -> slice, the operands of the piece)."""
    steps = _steps(kernel, case.shape)
    if all(step == case.shape[dim] for dim, step in steps.items()):
        # the case itself, whose operands are decoded once for all its readings
        yield {dim: slice(0, step) for dim, step in steps.items()}, case
        return
    grids = [
        [(dim, slice(a, min(a + step, case.shape[dim]))) for a in range(0, case.shape[dim], step)]
        for dim, step in steps.items()
    ]
    for place in itertools.product(*grids):
        where = dict(place)
        operands, values = {}, {}
        for operand in kernel.inputs():
            index = tuple(where.get(dim, slice(None)) for dim in operand.dims)
            operands[operand.name] = case.operands[operand.name][index]
            if operand.name in case.values:
                values[operand.name] = case.values[operand.name][index]
        shape = {
            dim: (where[dim].stop - where[dim].start) if dim in where else size
            for dim, size in case.shape.items()
        }
        yield where, Case(shape, operands, case.scalars, case.label, values)


def apply_reading(
    make: Callable[[], Reading],
    kernel: Kernel,
    case: Case,
    options: Mapping[str, Any],
    consume: Callable[[Operand, tuple[slice, ...], Any], None],
    parameters: Mapping[str, str] | None = None,
    prepare: Prepare | None = None,
) -> None:
    """Run a reading chunk by chunk; `consume` gets each output's place and payload."""
    for where, piece in chunks(kernel, case):
        reading = make()
        if prepare is not None:
            prepare(reading, where)
        inputs = {}
        for operand in kernel.inputs():
            inputs[operand.name] = reading.operand(kernel, piece, operand)
        outputs = evaluate(reading, kernel, inputs, case.scalars, options, parameters)
        for operand in kernel.outputs():
            consume(
                operand,
                tuple(where.get(dim, slice(None)) for dim in operand.dims),
                outputs[operand.name],
            )


def code_type(fmt: formats.Format) -> Any:
    """The smallest signed integer that holds the format's ordered integers."""
    return (
        np.int16
        if fmt.bits <= 16 and fmt.kind == "float"
        else np.int32
        if fmt.bits <= 32
        else np.int64
    )


def codes_of_bits(bits: Array, fmt: formats.Format) -> Array:
    """Ordered integers (contract.formats.ordered) of storage bits, in the smallest type that holds them."""
    if fmt.kind != "float":
        return formats.decode(bits, fmt).astype(code_type(fmt))
    if fmt.name in IEEE_CODES:
        signed = np.asarray(bits, order="C").view(code_type(fmt))
        # sign and magnitude to two's complement: -0 becomes -1, and the order of all else follows
        return np.asarray(
            signed ^ ((signed >> (fmt.bits - 1)) & signed.dtype.type((1 << (fmt.bits - 1)) - 1))
        )
    return formats.ordered(bits, fmt).astype(code_type(fmt))


#: Formats whose bits are those of a NumPy float, or the upper half of one.
IEEE_CODES = {"bf16": np.float32, "fp16": np.float16, "fp32": np.float32}


def to_codes(values: Array, fmt: formats.Format) -> Array:
    """Ordered integers of representable float64 values.

    Raises:
        ValueError: a value that the format does not hold.
    """
    if fmt.kind != "float":
        codes = values.astype(np.int64)
        if (codes != values).any() or (np.abs(values) > fmt.max + 1).any():
            raise ValueError(
                f"{float(values[codes != values].ravel()[0]) if (codes != values).any() else values.max()!r} is no {fmt.name} code"
            )
        return codes.astype(code_type(fmt))
    if fmt.name not in IEEE_CODES:
        return codes_of_bits(formats.encode(values, fmt), fmt)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.asarray(values, order="C").astype(IEEE_CODES[fmt.name])
    wrong = narrow != values
    if fmt.name == "bf16":
        word = narrow.view(np.int32)
        wrong |= (word & 0xFFFF) != 0
        bits = (word >> 16).astype(np.int16).view(np.uint16)
    else:
        bits = narrow.view(fmt.storage)
    if wrong.any():
        raise ValueError(f"{float(values[wrong].ravel()[0])!r} is not representable")
    return codes_of_bits(bits, fmt)


def rows_of(kernel: Kernel, ranges: CaseRange, rows: Any) -> dict[str, OutputRange]:
    """The ranges of these rows of a case, whose rows are independent: those of `take_rows`, without reading it."""
    return {o.name: ranges[o.name].rows(kernel.row_axis(o), rows) for o in kernel.outputs()}


def refusals(ranges: CaseRange, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Output -> where its bits are not allowed; a stage that was kept back is not among them."""
    return {name: out.refused(outputs[name]) for name, out in ranges.items() if name in outputs}


def output_shape(operand: Operand, case: Case) -> tuple[int, ...]:
    return tuple(case.shape[dim] for dim in operand.dims)


def case_range(
    kernel: Kernel,
    case: Case,
    options: Mapping[str, Any] | None = None,
    depths: Mapping[str, Any] | None = None,
    *,
    change: Change | None = None,
    parameters: Mapping[str, str] | None = None,
    prepare: Prepare | None = None,
) -> dict[str, OutputRange]:
    """What the contract allows for every output of a case.

    Args:
        options: one combination of the profile's options (its first where None).
        depths: an implementation's tighter order.
        change: a fault (diagnosis: what a kernel without one rounding point may give).
        parameters: other enumerated parameters than the kernel's (diagnosis).
        prepare: sets up each reading (contract.stages: observed stages, pinned values).
    """
    chosen = option_sets(kernel)[0] if options is None else options
    result: dict[str, OutputRange] = {}
    sets: dict[str, OutputSet] = {}
    for operand in kernel.outputs():
        fmt, shape = kernel.format(operand), output_shape(operand, case)
        kind = code_type(fmt)
        result[operand.name] = OutputRange(fmt, np.zeros(shape, kind), np.zeros(shape, kind), None)

    def consume(operand: Operand, place: tuple[slice, ...], value: Interval) -> None:
        if isinstance(value, Choices):
            target_set = result[operand.name]
            sets[operand.name] = placed(
                sets.get(operand.name), value, place, target_set.lo.shape, target_set.fmt
            )
            return
        out = result[operand.name]
        target = out.lo[place]
        lo = np.broadcast_to(value.lo, target.shape)
        hi = lo if value.same else np.broadcast_to(value.hi, target.shape)
        try:
            codes = to_codes(lo, out.fmt)
            if isinstance(value, Sparse) and value.shape == target.shape:
                top = codes.copy()
                top.reshape(-1)[value.spots] = to_codes(value.tops, out.fmt)
            else:
                top = codes if value.same else to_codes(hi, out.fmt)
        except ValueError as error:
            raise DeclarationError(
                f"{kernel.id}: output {operand.name} is not in its format {out.fmt.name} ({error});"
                " let its last rounding point round to that format"
            ) from error
        out.lo[place], out.hi[place] = codes, top
        if value.nan is not None:
            if out.nan is None:
                out.nan = np.zeros(out.lo.shape, np.uint8)
            out.nan[place] = np.broadcast_to(value.nan, target.shape)
        if not value.same:
            out.widest = _widest(lo, hi, out.fmt, out.widest)

    apply_reading(
        lambda: RangeReading(kernel.contract, kernel.profile, depths, change=change),
        kernel,
        case,
        chosen,
        consume,
        parameters,
        prepare,
    )
    return {**result, **sets}  # type: ignore[dict-item]


def _widest(lo: Array, hi: Array, fmt: formats.Format, known: float) -> float:
    """The largest width in ulps of max(|y|, rms of the row) of the elements with two finite ends, or `known` if larger.

    An element is measured only if it is beyond the widest one found so far in ulps of its row's rms, which are never
    the larger ones; each row's largest difference is measured first.
    """
    if not lo.size:
        return known
    columns = lo.shape[-1] if lo.ndim else 1
    lo, hi = (x.reshape(-1, columns) for x in (lo, hi))
    with np.errstate(over="ignore", invalid="ignore"):
        apart = hi - lo
        # an infinite end, or a NaN's placeholder
        if not np.isfinite(apart.sum()):
            finite = np.isfinite(lo) & np.isfinite(hi)
            lo, hi, apart = (np.where(finite, x, 0.0) for x in (lo, hi, apart))
        scale = np.minimum(np.sqrt(np.mean(np.square(lo), axis=-1)), fmt.max)
        unit = formats.ulp(scale, fmt)
        top = apart.argmax(axis=-1)

        def measured(places: tuple[Array, Array]) -> float:
            size = np.maximum(np.maximum(np.abs(lo[places]), np.abs(hi[places])), scale[places[0]])
            widths = apart[places] / formats.ulp(np.minimum(size, fmt.max), fmt)
            return max(known, float(widths.max()))

        every = np.arange(len(top))
        rows = np.flatnonzero(apart[every, top] > known * unit)
        if not rows.size:
            return known
        known = measured((rows, top[rows]))
        others = np.nonzero(apart[rows] > known * unit[rows, None])
        return measured((rows[others[0]], others[1])) if others[0].size else known


def plain_run(
    kernel: Kernel,
    case: Case,
    make: Callable[[], Reading],
    options: Mapping[str, Any],
    parameters: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Storage bits of every output of a one-execution reading (sample or nominal)."""
    result = {
        o.name: np.zeros(output_shape(o, case), kernel.format(o).storage) for o in kernel.outputs()
    }

    def consume(operand: Operand, place: tuple[slice, ...], value: Array) -> None:
        fmt = kernel.format(operand)
        target = result[operand.name]
        # a dropped last point leaves values that the store itself must round
        if fmt.kind == "int":
            # what a NaN becomes as an integer is not defined; here 0
            value = np.where(np.isnan(value), 0.0, value)
        value = np.broadcast_to(value, target[place].shape)
        try:
            target[place] = formats.encode(value, fmt)
        except ValueError:
            target[place] = formats.encode(formats.round_to(value, fmt), fmt)

    apply_reading(make, kernel, case, options, consume, parameters)
    return result


__all__ = [
    "MAY",
    "ONLY",
    "CaseRange",
    "OutputRange",
    "case_range",
    "evaluate",
    "option_sets",
    "plain_run",
    "refusals",
]
