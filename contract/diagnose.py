"""From a refused case to a message: the smallest row, the element, its bits, the allowed bits, and the fault that
reproduces what was observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from contract import autocontrols, formats
from contract.case import Case, Kernel, kernels_of, make_case, take_rows
from contract.interval import Array
from contract.judge import Bench, Failure, Outputs, Subject, same_bits
from contract.ranges import OutputRange, case_range, option_sets, refusals
from contract.shrink import shrink
from contract.stages import observing
from contract.worker_child import UNWRITTEN

SHRINK_CALLS = 120
# Larger rows are shown as they are: every step of the reducer would cost a whole launch and a whole range.
SHRINK_ELEMENTS = 1 << 16
EXPLAIN_ROWS = 64
_PROFILE = "profile "


@dataclass(frozen=True)
class Finding:
    """A failing case made small, and what there is to say about it."""

    detail: str
    case: Case


def ranges_and_refusals(
    kernel: Kernel,
    case: Case,
    outputs: Outputs,
    options: Mapping[str, Any],
    depths: Mapping[str, int],
) -> tuple[dict[str, OutputRange], dict[str, Array]]:
    """Ranges of a case and where its outputs are refused; a stage that was kept back is not among them."""
    ranges = case_range(kernel, case, options, depths, prepare=observing(kernel, outputs))
    shown = {name: out for name, out in ranges.items() if name in outputs}
    return shown, refusals(shown, outputs)


def explain(bench: Bench, subject: Subject, failure: Failure) -> Finding:
    """What a failed gate says about its failure."""
    kernel = bench.kernel
    lines: list[str] = []
    case, outputs = failure.case, failure.outputs
    ranges, refused = ranges_and_refusals(kernel, case, outputs, failure.options, subject.depths)
    if not any(mask.any() for mask in refused.values()):
        return Finding("", case)
    found = causes(kernel, failure, outputs, subject.depths, refused)
    small = _one_row(kernel, subject, failure, refused)
    if small is not None:
        case = small
        if sum(int(np.asarray(x).size) for x in case.operands.values()) <= SHRINK_ELEMENTS:
            case = _shrunk(kernel, subject, failure, case)
        outcome, _, _, outputs = subject.call(case, failure.launch)
        if outcome:
            case, outputs = failure.case, failure.outputs
    ranges, refused = ranges_and_refusals(kernel, case, outputs, failure.options, subject.depths)
    lines += element_lines(kernel, case, outputs, ranges, refused)
    if found and case is not failure.case:
        # one wrong output of many rows can be a coincidence, and so can the row that is printed
        here = causes(kernel, replace(failure, case=case), outputs, subject.depths, refused)
        found = [cause for cause in found if cause in here]
    if found:
        lines.append(cause_line(found))
    return Finding("\n".join(lines), case)


def _one_row(
    kernel: Kernel, subject: Subject, failure: Failure, refused: Mapping[str, Array]
) -> Case | None:
    """The first refused row alone, if it is refused alone too."""
    if kernel.shares or not kernel.contract.row_dims:
        return failure.case
    rows: set[int] = set()
    for operand in (o for o in kernel.outputs() if o.name in refused):
        axis = kernel.row_axis(operand)
        mask = refused[operand.name]
        if axis is not None and mask.any():
            rows.update(
                np.flatnonzero(
                    np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1).any(axis=1)
                )[:8].tolist()
            )
    for row in sorted(rows):
        piece = take_rows(
            kernel, failure.case, np.array([row]), f"row {row} of {failure.case.label}"
        )
        if _refuses(kernel, subject, failure, piece):
            return piece
    return None


def _refuses(kernel: Kernel, subject: Subject, failure: Failure, case: Case) -> bool:
    outcome, _, _, outputs = subject.call(case, failure.launch)
    if outcome:
        return False
    _, refused = ranges_and_refusals(kernel, case, outputs, failure.options, subject.depths)
    return any(bool(mask.any()) for mask in refused.values())


def _shrunk(kernel: Kernel, subject: Subject, failure: Failure, case: Case) -> Case:
    values = {o.name: case.value(kernel, o) for o in kernel.inputs()}
    axes = {o.name: kernel.row_axis(o) for o in kernel.inputs()}
    row_dim = kernel.contract.row_dims[0] if kernel.contract.row_dims else None

    def rebuilt(candidate: Mapping[str, Array]) -> Case:
        shape = dict(case.shape)
        if row_dim is not None:
            for name, axis in axes.items():
                if axis is not None:
                    shape[row_dim] = np.asarray(candidate[name]).shape[axis]
        return make_case(kernel, shape, candidate, case.scalars, case.label)

    try:
        small = shrink(
            values,
            lambda c: _refuses(kernel, subject, failure, rebuilt(c)),
            row_axis=axes,
            budget=SHRINK_CALLS,
        )
        return rebuilt(small.case)
    except Exception:  # noqa: BLE001 - a reducer that fails must not hide the failure it was to make small
        return case


def element_lines(
    kernel: Kernel,
    case: Case,
    outputs: Outputs,
    ranges: Mapping[str, OutputRange],
    refused: Mapping[str, Array],
    rows: Array | None = None,
) -> list[str]:
    """The first refused element: what came out, what was allowed, how far it is; and its operands.

    Args:
        rows: where the case is a sample, the row of the whole that each of its rows is.
    """
    for operand in (o for o in kernel.outputs() if o.name in refused):
        mask, out = refused[operand.name], ranges[operand.name]
        if not mask.any():
            continue
        index = tuple(int(i) for i in np.argwhere(mask)[0])
        got = outputs[operand.name][index]
        lo, hi, nan = out.ends(index)
        axis = kernel.row_axis(operand)
        place = ", ".join(
            str(i if rows is None or k != axis else int(rows[i])) for k, i in enumerate(index)
        )
        said = f"{operand.name}[{place}]: got {shown(got, out.fmt)}, allowed {allowed(lo, hi, nan, out)}"
        distance = _distance(out, index, got)
        lines = [f"{case.label}: {said}{', ' + distance if distance else ''}"]
        if int(got) == int.from_bytes(bytes([UNWRITTEN]) * got.dtype.itemsize, "little"):
            lines[0] += f"; all bytes {UNWRITTEN:#x}: what memory holds that nothing has written"
        lines.append(
            "operands: " + "; ".join(operand_line(kernel, case, o.name) for o in kernel.inputs())
        )
        if case.scalars:
            lines.append(
                "scalars: " + ", ".join(f"{name}={value!r}" for name, value in case.scalars.items())
            )
        return lines
    return []


def shown(bits: Any, fmt: formats.Format) -> str:
    """Bits and value of one element: 0x3f81 (1.0078125)."""
    value = float(formats.decode(np.asarray([bits]), fmt)[0])
    digits = max(1, fmt.bits // 4)
    return f"0x{int(bits):0{digits}x} ({value!r})" if fmt.kind == "float" else f"{int(value)}"


def allowed(lo: Array, hi: Array, nan: int, out: OutputRange) -> str:
    if nan == 2:
        return "NaN only"

    def one(code: Array) -> str:
        return shown(code, out.fmt) if out.fmt.kind == "float" else str(int(code))

    tail = ", or NaN" if nan else ""
    if int(lo) == int(hi):
        return f"{one(lo)} only{tail}"
    return f"{one(lo)} .. {one(hi)}{tail}"


def _distance(out: OutputRange, index: tuple[int, ...], got: Any) -> str:
    if out.fmt.kind != "float" or bool(formats.is_nan(np.asarray([got]), out.fmt)[0]):
        return ""
    if out.nan is not None and out.nan[index] == 2:
        return ""
    code = int(formats.ordered(np.asarray([got]), out.fmt)[0])
    above, below = code - int(out.hi[index]), int(out.lo[index]) - code
    return f"{above:,} ulp too high" if above > 0 else f"{below:,} ulp too low"


def operand_line(kernel: Kernel, case: Case, name: str) -> str:
    operand = next(o for o in kernel.inputs() if o.name == name)
    values = case.value(kernel, operand)
    fmt = kernel.format(operand)
    flat = values.ravel()
    head = f"{name} {fmt.name}{list(values.shape)}"

    def one(value: Any) -> str:
        return str(int(value)) if fmt.kind == "int" else repr(float(value))

    if flat.size and (flat == flat[0]).all():
        return f"{head} all {one(flat[0])}"
    kinds, counts = np.unique(flat, return_counts=True)
    # most elements alike: those that are not
    for most in (0.0, *kinds[counts > 0.75 * flat.size][:1]):
        differ = np.flatnonzero(~((flat == most) | (np.isnan(flat) & np.isnan(most))))
        if differ.size <= 8:
            places = (np.unravel_index(i, values.shape) for i in differ)
            but = (
                f"[{', '.join(str(int(k)) for k in place)}]={one(values[place])}"
                for place in places
            )
            return f"{head} {'zero' if most == 0 else one(most)} but {', '.join(but)}"
    return f"{head} = " + ", ".join(one(v) for v in flat[:6]) + ", ..."


def causes(
    kernel: Kernel,
    failure: Failure,
    outputs: Outputs,
    depths: Mapping[str, int],
    refused: Mapping[str, Array],
    *,
    profiles: bool = True,
) -> list[str]:
    """Each dropped or truncated point, option or parameter under which, alone, every observed bit is allowed; or else
    each other profile of the same formats."""
    case, outputs = some_rows(kernel, failure.case, outputs, refused)
    found = []
    for name, (_, change) in autocontrols.changes(kernel).items():
        if _explains(kernel, case, outputs, failure.options, depths, change=change):
            found.append(change_words(name))
    for name, (_, options) in autocontrols.other_options(kernel).items():
        if _explains(kernel, case, outputs, options, depths):
            found.append(f"option {name}")
    for name, (_, parameters) in autocontrols.other_parameters(kernel).items():
        if _explains(kernel, case, outputs, failure.options, depths, parameters=parameters):
            found.append(f"parameter {name}")
    for other in same_formats(kernel) if profiles else ():
        if any(_explains(other, case, outputs, o, depths) for o in option_sets(other)):
            found.append(f"{_PROFILE}`{other.profile.name}`")
    return found


def change_words(name: str) -> str:
    """A fault of `autocontrols.changes`, in words."""
    how, _, point = name.partition("-")
    return {
        "drop": f"dropped point `{point}`",
        "truncate": f"`{point}` truncated instead of rounded to nearest even",
        "nearest": f"`{point}` rounded to nearest even instead of truncated",
    }[how]


def same_formats(kernel: Kernel) -> list[Kernel]:
    """The kernels of the other profiles, where these read and write the same formats."""
    return [
        other
        for other in kernels_of(kernel.contract)
        if other.parameters == kernel.parameters
        and other.profile.name != kernel.profile.name
        and all(other.format(o) == kernel.format(o) for o in (*kernel.inputs(), *kernel.outputs()))
    ]


def cause_line(found: Sequence[str]) -> str:
    """The line of a finding that names its causes; profiles only where no single change is one."""
    found = [cause for cause in found if not cause.startswith(_PROFILE)] or found
    if len(found) == 1:
        return f"reproduces all observed bits: {found[0]}"
    return f"each reproduces all observed bits: {'; '.join(found)}"


def some_rows(
    kernel: Kernel, case: Case, outputs: Outputs, refused: Mapping[str, Array]
) -> tuple[Case, Outputs]:
    """At most EXPLAIN_ROWS rows of a case, the first refused ones among them."""
    if kernel.shares or not kernel.contract.row_dims or case.rows(kernel) <= EXPLAIN_ROWS:
        return case, outputs
    bad: set[int] = set()
    for operand in (o for o in kernel.outputs() if o.name in refused):
        axis, mask = kernel.row_axis(operand), refused[operand.name]
        if axis is not None:
            hit = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1).any(axis=1)
            bad.update(np.flatnonzero(hit)[: EXPLAIN_ROWS // 2].tolist())
    rows = np.array(sorted(bad | set(range(EXPLAIN_ROWS // 2))))
    kept = {
        o.name: _take(outputs[o.name], kernel.row_axis(o), rows)
        for o in kernel.outputs()
        if o.name in outputs
    }
    return take_rows(kernel, case, rows), kept


def _take(bits: Array, axis: int | None, rows: Array) -> Array:
    return bits if axis is None else np.take(bits, rows, axis)


def _explains(
    kernel: Kernel,
    case: Case,
    outputs: Outputs,
    options: Mapping[str, Any],
    depths: Mapping[str, int],
    **fault: Any,
) -> bool:
    prepare = observing(kernel, outputs)
    try:
        ranges = case_range(kernel, case, options, depths, prepare=prepare, **fault)
    except Exception:  # noqa: BLE001 - a reference without its last rounding has no range in the output's format
        return _repeats(kernel, case, outputs, options, **fault)
    return not any(mask.any() for mask in refusals(ranges, outputs).values())


def _repeats(
    kernel: Kernel,
    case: Case,
    outputs: Outputs,
    options: Mapping[str, Any],
    **fault: Any,
) -> bool:
    """Whether the plain execution with the fault, stored in the outputs' formats, gives the observed bits."""
    try:
        plain = autocontrols.nominal(kernel, case, options=options, **fault)
    except Exception:  # noqa: BLE001 - a fault under which the reference computes nothing explains nothing
        return False
    return not same_bits(kernel, {**plain, **_kept_back(kernel, outputs)}, outputs)


def _kept_back(kernel: Kernel, outputs: Outputs) -> dict[str, Any]:
    """Stages that the outputs lack, as an execution that keeps them to itself lacks them, too."""
    return {o.name: None for o in kernel.outputs() if outputs.get(o.name) is None}
