"""Gate `invariance`: what must not move a bit.

Always: the same call twice (unless repeatable=False is declared), and the contents of other rows (unless the contract
names what its rows share), NaN in them included. If contract or implementation lists it: batch, position, launch,
layout. An unlisted difference inside the range is measured and printed, never red.
"""

from __future__ import annotations

import numpy as np

from contract import formats
from contract.case import Case, Kernel, take_rows
from contract.engines import PTX
from contract.inputs import generator, size_of, typical_values
from contract.judge import PLAIN, Bench, Failure, Outputs, Subject, Tally, same_bits

LISTED = {"one-row": "batch", "three-rows": "batch", "strided": "layout", "offset": "layout"}


def run(bench: Bench, subject: Subject) -> Tally:
    """Bits equal where nothing may move them."""
    tally = Tally()
    kernel = bench.kernel
    # a row that failed once is one row: it stands beside the block, whose rows can move each other, not in its place
    stress = bench.cases("stress")[: len(bench.stored) + 1]
    cases = [*bench.small_cases(), *stress]
    if bench.effort != "nightly":
        # one of several rows, and the largest such: a statistic over all rows must have rows to move it; the smallest
        # where every instruction is executed one by one
        sign = -1 if subject.engine == PTX else 1
        cases = [
            max(bench.small_cases(), key=lambda c: (c.rows(kernel) > 1, sign * size_of(c.shape)))
        ]
        cases += stress if bench.effort == "default" else []
    moved: dict[str, int] = {}
    total = 0
    for case in cases:
        outcome, detail, _, first = subject.call(case)
        if outcome:
            return tally.stop(outcome, f"{detail} ({case.label})")
        total += _size(first)
        for step in (_repeat, _others):
            if step(kernel, subject, case, first, tally):
                return tally
        listed = (*kernel.contract.invariant, *subject.invariant)
        for launch in subject.launches:
            what = LISTED.get(launch.name, "launch")
            # the gate shapes runs every launch: quick only wants to know what may be red here
            if launch.name == PLAIN.name or (bench.effort == "quick" and what not in listed):
                continue
            outcome, detail, _, again = subject.call(case, launch)
            if outcome:
                return tally.stop(outcome, f"{detail} ({case.label}, launch {launch.name})")
            differ = same_bits(kernel, first, again)
            tally.compared += _size(first)
            if differ and what in listed:
                tally.failure = Failure("invariance", case, launch, again, bench.options[0])
                return tally.stop(
                    "fail",
                    f"launch {launch.name} moves {differ} outputs, and {what} is declared invariant ({case.label})",
                )
            moved[launch.name] = moved.get(launch.name, 0) + differ
        if _position(kernel, subject, case, first, tally, moved):
            return tally
    tally.notes += [
        f"{name}: {100 * count / total:.2g} % of bits move"
        for name, count in moved.items()
        if count
    ]
    return tally


def _position(
    kernel: Kernel,
    subject: Subject,
    case: Case,
    first: Outputs,
    tally: Tally,
    moved: dict[str, int],
) -> bool:
    """The rows one place further on."""
    rows = case.rows(kernel)
    if kernel.shares or rows < 2:
        return False
    turned = np.roll(np.arange(rows), 1)
    outcome, detail, _, again = subject.call(take_rows(kernel, case, turned), PLAIN)
    if outcome:
        tally.stop(outcome, f"{detail} ({case.label}, rows moved by one)")
        return True
    there = {
        o.name: np.take(first[o.name], turned, kernel.row_axis(o) or 0)
        for o in kernel.outputs()
        if o.name in first
    }
    differ = same_bits(kernel, there, again)
    tally.compared += _size(again)
    moved["position"] = moved.get("position", 0) + differ
    if not differ or "position" not in (*kernel.contract.invariant, *subject.invariant):
        return False
    tally.stop(
        "fail",
        f"rows moved by one place move {differ} outputs, and position is declared invariant ({case.label})",
    )
    return True


def _size(outputs: Outputs) -> int:
    return sum(int(bits.size) for bits in outputs.values())


def _repeat(kernel: Kernel, subject: Subject, case: Case, first: Outputs, tally: Tally) -> bool:
    if not subject.repeatable:
        return False
    outcome, detail, _, again = subject.call(case, twice=True)
    if outcome:
        tally.stop(outcome, f"{detail} ({case.label}, second call)")
        return True
    tally.compared += _size(first)
    differ = same_bits(kernel, first, again)
    if differ:
        tally.stop(
            "fail",
            f"the same call twice moves {differ} outputs ({case.label}); declare repeatable=False if that is meant",
        )
    return bool(differ)


def _others(kernel: Kernel, subject: Subject, case: Case, first: Outputs, tally: Tally) -> bool:
    if kernel.shares or case.rows(kernel) < 2:
        return False
    for what in ("other values", "NaN"):
        changed = _with_other_rows(kernel, case, what)
        outcome, detail, _, again = subject.call(changed)
        if outcome:
            tally.stop(outcome, f"{detail} ({case.label}, {what} in the odd rows)")
            return True
        differ = same_bits(kernel, _even(kernel, first), _even(kernel, again))
        tally.compared += _size(first) // 2
        if differ:
            tally.stop(
                "fail",
                f"{what} in the odd rows move {differ} outputs of the even rows ({case.label})",
            )
            return True
    return False


def _even(kernel: Kernel, outputs: Outputs) -> Outputs:
    result = {}
    for operand in kernel.outputs():
        if operand.name not in outputs:
            # a stage that the implementation keeps to itself
            continue
        axis = kernel.row_axis(operand) or 0
        result[operand.name] = np.moveaxis(outputs[operand.name], axis, 0)[::2]
    return result


def _with_other_rows(kernel: Kernel, case: Case, what: str) -> Case:
    """The same case with other contents in its odd rows."""
    whole = take_rows(kernel, case, slice(None))
    operands = {}
    for operand in kernel.inputs():
        bits, axis, fmt = (
            whole.operands[operand.name],
            kernel.row_axis(operand),
            kernel.format(operand),
        )
        if axis is not None:
            bits = bits.copy()
            odd = np.moveaxis(bits, axis, 0)[1::2]
            drawn = generator("others", what, operand.name)
            limit = operand.limit(case.shape)
            if what == "NaN" and fmt.has_nan:
                values = np.full(odd.shape, np.nan)
            elif limit is not None:
                # an index outside is no input, in whatever row it stands
                values = typical_values(operand, fmt, drawn, odd.shape, limit)
            else:
                values = drawn.standard_normal(odd.shape) * 3.0
                values = np.rint(values * 16) if fmt.kind == "int" else values
            odd[...] = formats.encode(formats.round_to(values, fmt), fmt)
        operands[operand.name] = bits
    return Case(case.shape, operands, case.scalars, f"{case.label} with {what} in the odd rows")
