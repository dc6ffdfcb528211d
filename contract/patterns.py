"""Where the refused outputs of a case lie, and what they have in common: rows, columns, lanes, sides, and whole answers
that were given to another question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from contract import formats
from contract.case import Case, Kernel
from contract.interval import Array
from contract.judge import Outputs
from contract.ranges import OutputRange

#: Periods at which a column is a lane, a vector's element or a packed code.
LANES = (2, 4, 8, 16, 32, 64, 128)
#: Places that are listed before they are only counted.
LISTED = 8


def lines(
    kernel: Kernel,
    case: Case,
    outputs: Outputs,
    ranges: Mapping[str, OutputRange],
    refused: Mapping[str, Array],
) -> list[str]:
    """One line for each thing that can be said of the refused outputs of a whole case."""
    found = []
    for operand in (o for o in kernel.outputs() if o.name in refused):
        mask, bits = refused[operand.name], outputs[operand.name]
        if not mask.any():
            continue
        name = operand.name
        found.append(f"{name}: {int(mask.sum()):,} of {mask.size:,} outputs are refused")
        axis = kernel.row_axis(operand)
        if axis is not None:
            found.append(f"{name}: {places(mask, axis, kernel.contract.row_dims[0])}")
        if operand.dims and axis != mask.ndim - 1:
            found.append(f"{name}: {places(mask, mask.ndim - 1, operand.dims[-1])}")
        out = ranges[name]
        if isinstance(out, OutputRange) and out.fmt.kind == "float":
            found += [f"{name}: {line}" for line in sides(out, bits, mask)]
        found += [f"{name}: {line}" for line in answers(kernel, case, name, bits, out, axis)]
    return found


def places(mask: Array, axis: int, dim: str) -> str:
    """Which indices along an axis have a refused output: all, a few, or those of one lane."""
    hit = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1).any(axis=1)
    where, size = np.flatnonzero(hit), hit.size
    if where.size == size:
        return f"all {size:,} indices of {dim}" if size > 1 else f"the one index of {dim}"
    for period in LANES:
        lanes = np.unique(where % period)
        every = np.flatnonzero(np.isin(np.arange(size) % period, lanes))
        # several whole turns of few lanes: else any set is a set of lanes
        if 2 * period <= size and 2 * lanes.size <= period and np.array_equal(where, every):
            return f"{dim} = {_list(lanes)} modulo {period}, and no other"
    first, last = int(where[0]), int(where[-1])
    if where.size == last - first + 1 and where.size > LISTED:
        return f"{dim} = {first:,} to {last:,} of 0 to {size - 1:,}"
    return f"{where.size:,} of {size:,} indices of {dim}: {_list(where)}"


def _list(where: Array) -> str:
    more = ", ..." if where.size > LISTED else ""
    return ", ".join(str(int(i)) for i in where[:LISTED]) + more


def sides(out: OutputRange, bits: Array, mask: Array) -> list[str]:
    """On which side of their ranges the refused outputs lie, and how far."""
    numbers = mask & ~formats.is_nan(bits, out.fmt)
    if out.nan is not None:
        numbers &= out.nan != 2
    found = []
    if (mask & formats.is_nan(bits, out.fmt)).any():
        found.append(
            f"{int((mask & formats.is_nan(bits, out.fmt)).sum()):,} of the refused are NaN"
        )
    if not numbers.any():
        return found
    codes = formats.ordered(bits[numbers], out.fmt).astype(np.int64)
    lo, hi = out.lo[numbers].astype(np.int64), out.hi[numbers].astype(np.int64)
    high = codes > hi
    far = np.where(high, codes - hi, lo - codes)
    # -0 is code -1: the magnitude shrinks toward both zeros
    inward = np.where(high, hi < 0, lo >= 0)
    if inward.all():
        # rounding down instead of to nearest moves a result by one unit
        cut = ", as truncation leaves it" if far.max() == 1 else ""
        found.append(f"one-sided: every refused output is too close to zero{cut}")
    elif not inward.any():
        found.append("one-sided: every refused output is too far from zero")
    elif high.all() or not high.any():
        found.append(f"one-sided: every refused output is too {'high' if high.all() else 'low'}")
    else:
        found.append(f"both sides: {100 * float(high.mean()):.0f} % of the refused are too high")
    near = 100 * float((far == 1).mean())
    found.append(f"{near:.0f} % of the refused are 1 ulp off, the farthest {int(far.max()):,}")
    return found


def answers(
    kernel: Kernel, case: Case, name: str, bits: Array, out: OutputRange, axis: int | None
) -> list[str]:
    """Whole outputs that say something of themselves: one value everywhere, an operand, another row's or column's."""
    found: list[str] = []
    first = bits.reshape(-1)[:1]
    if bits.size and (bits == first).all():
        value = float(formats.decode(first, out.fmt)[0])
        if bits.size == 1 and value:
            return found
        found.append(f"every output is {value!r}")
        return found
    found += [
        f"it holds the values of operand {operand.name}"
        for operand in kernel.inputs()
        if _copied(case.value(kernel, operand), bits, out.fmt)
    ]
    axes: Sequence[int] = dict.fromkeys(
        a for a in (axis, bits.ndim - 1) if a is not None and a >= 0
    )  # type: ignore[assignment]
    for where in axes:
        if bits.shape[where] < 2:
            continue
        dim = next(o for o in kernel.outputs() if o.name == name).dims[where]
        for shift, words in ((-1, "the index before"), (1, "the next index")):
            if not out.refused(np.roll(bits, shift, where)).any():
                found.append(f"each output is the right one of {words} of {dim}")
    return found


def _copied(values: Array, bits: Array, fmt: formats.Format) -> bool:
    """Whether the bits are these values in another format, repeated or cut where their number differs."""
    known = np.where(np.isnan(values), 0.0, values) if not fmt.has_nan else values
    with np.errstate(invalid="ignore", over="ignore"):
        stored = formats.encode(formats.round_to(np.resize(known, bits.shape), fmt), fmt)
    return bool(np.array_equal(stored, bits))
