"""Planted red controls that would be red without their fault.

A red control says something of its gate only where it is the planted fault that is refused. Each one is called on small
typical cases, in the worker that a run uses, and asked three things:

- is there an output to compare? One of another shape or dtype, or a call that raises, is refused by any gate;
- is it a kernel? Outputs that are all zero, or all NaN, are refused whatever the fault was meant to be;
- does it round as its profile does? Where another profile of the contract explains most of the outputs that its own
  refuses, and the fault is there under that one too, the roundings are what its own profile sees.

Whether its own gate is the one that refuses it is what `contract run` tells: `red_elsewhere`, `missed`, `crashed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from contract import autocontrols, formats, registry
from contract.case import Case, Kernel, find, kernels_of
from contract.checks import Check
from contract.declare import Control, served
from contract.engines import HOST
from contract.interval import Array
from contract.judge import PLAIN, Bench, Subject
from contract.judge_process import Judge
from contract.lint.findings import Finding
from contract.lint.places import contract_place, place_of
from contract.ranges import case_range, option_sets, refusals

#: Gates that compare values, and whose rows another profile can be asked about.
VALUES = ("shapes", "stress", "exact")
#: Cases of a control's gate that are called.
CASES = 2
#: Another profile is the one that a control rounds by where it refuses less than this share of what its own refuses.
NEARER = 0.5

Outputs = Mapping[str, Array]


@dataclass
class Asked:
    """The findings of planted controls, and how many were called, or why not."""

    findings: list[Finding]
    called: int = 0
    not_called: int = 0


def findings(process: Judge, checks: Sequence[Check]) -> Asked:
    """Ask every planted red control among these checks."""
    asked = Asked([])
    for check in checks:
        if check.target != "control" or check.colour != "red" or check.expect:
            continue
        kernel = find(check.spec["name"], check.spec["profile"], check.spec["parameters"])
        control = _control(kernel, check)
        subject, missing = process.subject(kernel, check.as_json())
        if missing or check.engine != HOST:
            asked.not_called += 1
            continue
        asked.called += 1
        bench = process.bench(kernel, {"kernel": dict(check.spec)})
        try:
            asked.findings += _of_control(bench, subject, control)
        finally:
            if subject.touched:
                subject.close()
    return asked


def _control(kernel: Kernel, check: Check) -> Control:
    return next(
        c
        for c in registry.controls(kernel.contract.name)
        if (f"{c.colour}.{c.name}", c.profile) == (check.name, kernel.profile.name)
        and served(c.parameters, kernel.parameters)
    )


def _of_control(bench: Bench, subject: Subject, control: Control) -> Iterator[Finding]:
    called: list[tuple[Case, Outputs]] = []
    for case in bench.small_cases():
        outcome, detail, report, outputs = subject.call(case, PLAIN)
        if outcome == "not_run":
            return
        if outcome:
            # what lies outside its memory, or in another's, is the fault of the gate bounds
            if outcome != "fail" or (report.get("bad") and "bounds" not in control.gates):
                yield _finding(
                    bench,
                    control,
                    f"is refused before a value is compared: {detail} ({case.label})",
                    "return every output in its shape and format, or say expect= where ending so is the fault",
                )
            return
        called.append((case, outputs))
    rows = list(_rows(bench, subject, control.gates[0]))
    if null := _null(bench.kernel, [*called, *rows]):
        yield _finding(
            bench,
            control,
            f"gives nothing but {null} on typical rows and on those of its gate: any gate refuses that, whatever its fault",
            "plant one fault in a kernel that is right without it",
        )
    elif other := _other_profile(bench.kernel, control, called, rows):
        yield _finding(
            bench,
            control,
            other,
            "round as its profile does, or plant it under the other one",
        )


def _null(kernel: Kernel, called: Sequence[tuple[Case, Outputs]]) -> str:
    """`zeros` or `NaN` where all outputs of all cases are that, and those of the contract are not."""
    values = {"zeros": True, "NaN": True}
    for case, outputs in called:
        right = autocontrols.nominal(kernel, case)
        for operand in kernel.outputs():
            if operand.name not in outputs:
                continue
            fmt = kernel.format(operand)
            got, want = (formats.decode(bits[operand.name], fmt) for bits in (outputs, right))
            values["zeros"] &= bool((got == 0).all()) and bool((want != 0).any())
            values["NaN"] &= bool(np.isnan(got).all()) and not np.isnan(want).all()
    return next((name for name, holds in values.items() if holds and called), "")


def _rows(bench: Bench, subject: Subject, gate: str) -> Iterator[tuple[Case, Outputs]]:
    """The first cases of a control's gate with its outputs; none where the gate compares no values."""
    if gate not in VALUES:
        return
    for _, case in subject.chosen(bench, gate)[:CASES]:
        outcome, _, _, outputs = subject.call(case, PLAIN)
        if not outcome:
            yield case, outputs


def _other_profile(
    kernel: Kernel,
    control: Control,
    called: Sequence[tuple[Case, Outputs]],
    rows: Sequence[tuple[Case, Outputs]],
) -> str:
    if not rows or _is_client(control):
        return ""
    own = _share(kernel, called)
    right = [(case, autocontrols.nominal(kernel, case)) for case, _ in called] if own else []
    for other in kernels_of(kernel.contract):
        same = other.parameters == kernel.parameters and other.profile.name != kernel.profile.name
        if not own or not same or not _same_formats(kernel, other):
            continue
        theirs = _share(other, called)
        if (
            theirs < NEARER * own
            # one that takes a right kernel of this profile, too, is not nearer but wider
            and _share(other, right) >= NEARER * own
            and _share(other, rows)
            and not _is_one_change(kernel, [*called, *rows])
        ):
            return (
                f"rounds as {other.profile.name} does: of its typical outputs {kernel.profile.name} refuses"
                f" {100 * own:.1f} %, {other.profile.name} {100 * theirs:.1f} %; its fault shows under both"
            )
    return ""


def _is_one_change(kernel: Kernel, called: Sequence[tuple[Case, Outputs]]) -> bool:
    """Whether the profile with one point dropped, or one option changed, explains all outputs: that is the fault."""
    profile = kernel.profile
    _, _, last = autocontrols.uses(kernel)
    edits = [
        replace(profile, points={**profile.points, point: None})
        for point in profile.rounded_points()
        # nothing could be stored without the last one
        if point not in last
    ]
    edits += [
        replace(profile, options={**profile.options, option: value})
        for option, values in kernel.contract.options.items()
        for value in values
        if value != profile.options[option]
    ]
    return any(not _share(replace(kernel, profile=edit), called) for edit in edits)


def _is_client(control: Control) -> bool:
    """Whether other people's kernel is planted, or an implementation of another profile: that is the fault."""
    return bool(control.requires) or any(
        item.call is control.call for item in registry.implementations(control.kernel)
    )


def _same_formats(a: Kernel, b: Kernel) -> bool:
    operands = (*a.inputs(), *a.outputs())
    return operands == (*b.inputs(), *b.outputs()) and all(
        a.format(o) == b.format(o) for o in operands
    )


def _share(kernel: Kernel, called: Sequence[tuple[Case, Outputs]]) -> float:
    """The share of outputs that the kernel refuses, under the alternative that refuses fewest."""
    if not called:
        return 0.0
    shares = []
    for options in option_sets(kernel):
        refused = total = 0
        for case, outputs in called:
            ranges = case_range(kernel, case, options)
            for mask in refusals(
                {k: r for k, r in ranges.items() if k in outputs}, outputs
            ).values():
                refused, total = refused + int(mask.sum()), total + mask.size
        shares.append(refused / max(total, 1))
    return min(shares)


def _finding(bench: Bench, control: Control, reason: str, repair: str) -> Finding:
    place = place_of(control.place) or contract_place(bench.kernel.contract)
    name = f"{bench.kernel.id}/{control.colour}.{control.name}"
    return Finding(*place, "red-for-another-reason", f"{name} {reason}", repair)
