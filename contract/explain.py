"""`contract explain ID`: a failing check replayed, and what its wrong outputs say of the fault behind them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from contract import diagnose, gates, patterns, select, suites, trace
from contract.case import Case, Kernel, find
from contract.checks import Check, collect_checks
from contract.config import Config, RunOptions
from contract.errors import UsageError
from contract.formats import encode
from contract.gates import GATES
from contract.identify import fit as fits
from contract.identify.fit import Fit, Probe
from contract.identify.hypotheses import Hypothesis, Signature, first_round, second_round
from contract.identify.words import percent
from contract.interval import Array
from contract.judge import Bench, Failure, Outputs, Subject, Tally
from contract.judge_process import Judge, settle
from contract.rowbook import RowBook

#: Causes of the widest search that are named.
NAMED = 4


@dataclass
class Explanation:
    """What there is to say of one check.

    Attributes:
        id: of the check; gate: that refused it, '' where none did; detail: the verdict.
        element: the smallest refused case and element; points: the value at each rounding point there.
        pattern: what the refused outputs of the whole case have in common.
        causes: changes of the contract that reproduce all observed bits; nearest: where there is none, the one that
            reproduces most of them, if it does better than none.
    """

    id: str
    gate: str = ""
    detail: str = ""
    element: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    pattern: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    nearest: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.gate)

    def lines(self) -> list[str]:
        """All of it, as the terminal shows it."""
        if not self.failed:
            return [f"{self.id}: {self.detail or 'green: there is nothing to explain'}"]
        said = [f"{self.id}: refused by {self.gate}: {self.detail}", *self.element]
        if self.points:
            said += ["rounding points of that element, as the contract has them:", *self.points]
        if self.pattern:
            said += ["the whole case:", *(f"  {line}" for line in self.pattern)]
        if self.element:
            said.append(
                diagnose.cause_line(self.causes)
                if self.causes
                else f"no point, option, parameter or profile reproduces the observed bits{self.nearest}"
            )
        return said


def explain(checks: Sequence[Check], options: RunOptions) -> Explanation:
    """Replay the checks until one fails, as it was judged: same seed, effort and stored rows."""
    settle()
    process = Judge(vars(options), lambda message: None)
    rows = RowBook(options.store_root)
    said = Explanation(checks[0].id)
    try:
        for check in checks:
            spec = check.spec
            kernel = find(spec["name"], spec["profile"], spec["parameters"])
            bench = process.bench(kernel, {"kernel": dict(spec), "rows": rows.rows_for(check)})
            subject, missing = process.subject(kernel, check.as_json())
            said = Explanation(check.id, detail=missing)
            if not missing:
                said = of_subject(check, bench, subject)
            if said.failed:
                return said
    finally:
        process.close()
    return said


def of_subject(check: Check, bench: Bench, subject: Subject) -> Explanation:
    """What a target's first refused gate says."""
    for gate in _gates(check):
        tally = gates.run(gate, bench, subject)
        if tally.outcome in ("pass", "not_applicable"):
            continue
        said = Explanation(check.id, gate, tally.detail)
        return said if tally.failure is None else _of_failure(said, bench, subject, tally)
    return Explanation(check.id)


def _gates(check: Check) -> list[str]:
    """The gates that may refuse it, the ones named for it first."""
    if check.gate is not None and check.kind == "gate":
        return [check.gate]
    return [*check.gates, *(g for g in GATES if g not in check.gates and g != "limits")]


def _of_failure(said: Explanation, bench: Bench, subject: Subject, tally: Tally) -> Explanation:
    failure, kernel = tally.failure, bench.kernel
    assert failure is not None
    ranges, refused = diagnose.ranges_and_refusals(
        kernel, failure.case, failure.outputs, failure.options, subject.depths
    )
    finding = diagnose.explain(bench, subject, failure)
    said.element = [line for line in finding.detail.splitlines() if "all observed bits" not in line]
    said.pattern = patterns.lines(kernel, failure.case, failure.outputs, ranges, refused)
    said.points = _points(kernel, subject, failure, finding.case)
    said.causes, said.nearest = causes_of(kernel, failure, subject.depths, refused)
    return said


def causes_of(
    kernel: Kernel, failure: Failure, depths: Mapping[str, int], refused: Mapping[str, Array]
) -> tuple[list[str], str]:
    """Single changes that reproduce all observed bits; combinations of changes and narrow accumulators where none does; and
    where these do not either, the nearest."""
    found = diagnose.causes(kernel, failure, failure.outputs, depths, refused)
    if found:
        return found, ""
    return searched(kernel, *diagnose.some_rows(kernel, failure.case, failure.outputs, refused))


def _points(kernel: Kernel, subject: Subject, failure: Failure, case: Case) -> list[str]:
    """The table of rounding points at the first refused element of the smallest case."""
    outcome, _, _, outputs = subject.call(case, failure.launch)
    if outcome:
        case, outputs = failure.case, failure.outputs
    _, refused = diagnose.ranges_and_refusals(
        kernel, case, outputs, failure.options, subject.depths
    )
    for mask in refused.values():
        if mask.any():
            index = tuple(int(i) for i in np.argwhere(mask)[0])
            found = trace.points(kernel, case, failure.options, mask.shape, index, outputs)
            return [_line(point) for point in found]
    return []


def _line(point: trace.Point) -> str:
    name = f"  {point.name}"
    if point.index is None:
        return f"{name}: {point.count:,} values, {point.value!r} to {point.high!r}"
    if point.fmt is None:
        return f"{name}: not rounded: {point.value!r}, allowed {point.low!r} .. {point.high!r}"

    def one(value: float) -> str:
        assert point.fmt is not None
        if point.fmt.kind != "float" or not np.isfinite(value):
            return repr(value)
        return diagnose.shown(encode(np.asarray([value]), point.fmt)[0], point.fmt)

    bounds = (
        f"{one(point.low)} only"
        if point.low == point.high
        else f"{one(point.low)} .. {one(point.high)}"
    )
    return f"{name}: {point.before!r} rounds to {one(point.value)} in {point.fmt.name}, allowed {bounds}"


def searched(kernel: Kernel, case: Case, outputs: Outputs) -> tuple[list[str], str]:
    """Combinations of changes, and narrow accumulators, that explain every output of a case, those with fewest changes; or
    none, and which explains most."""
    ranked = _fits(kernel, case, outputs)
    good = [fit for fit in ranked if not fit.refused]
    good.sort(key=lambda fit: (len(fit.hypothesis.changes), fit.width))
    if good:
        fewest = len(good[0].hypothesis.changes)
        alike = [fit.hypothesis for fit in good if len(fit.hypothesis.changes) == fewest]
        return list(dict.fromkeys(map(_changes, alike)))[:NAMED], ""
    if not ranked or not ranked[0].hypothesis.changes:
        return [], ""
    share = percent(ranked[0].share)
    return [], f"; the nearest, {_changes(ranked[0].hypothesis)}, reproduces {share}"


def _fits(kernel: Kernel, case: Case, outputs: Outputs) -> list[Fit]:
    """What comes near on a case, the best first."""
    signature = Signature((kernel, *diagnose.same_formats(kernel)))
    probe = Probe(case, outputs)
    sums = max(case.shape.values()) <= fits.LONGEST
    listed = first_round(signature, [{}]).hypotheses
    near = fits.survivors(listed, [probe])
    tried = {
        h.key: h
        for fit in near[: fits.VARIED]
        for h in (fit.hypothesis, *second_round(fit.hypothesis, sums=sums))
    }
    whole = [fits.on(fit.hypothesis, [probe]) for fit in fits.survivors(tried.values(), [probe])]
    return sorted((fit for fit in whole if fit is not None), key=lambda fit: fit.order)


def _changes(hypothesis: Hypothesis) -> str:
    return " and ".join(hypothesis.changes) or f"profile `{hypothesis.base.name}`"


def exit_code(said: Explanation) -> int:
    """0 where a failure was replayed and its cause named; 1 where it was replayed, 5 where nothing failed."""
    if not said.failed:
        return 5
    return 0 if said.causes else 1


def command(arguments: argparse.Namespace, config: Config) -> int:
    """`contract explain ID`: print what is to be said of the first of the named checks that fails; returns the exit code.

    Raises:
        UsageError: names that no check of an implementation or control has.
    """
    for name in arguments.names:
        select.refuse_absent(name)
    loaded = suites.load(config, arguments.names)
    # a file beside an id says where to find it
    ids = tuple(name for name in arguments.names if name not in loaded.chosen)
    selection = select.Selection(ids or tuple(arguments.names))
    chosen = select.select(collect_checks(), selection, loaded.chosen)
    chosen = [check for check in chosen if check.kind != "reference"]
    if not chosen:
        raise UsageError(f"{arguments.names[-1]}: names no check of an implementation or control")
    options = RunOptions(
        effort=arguments.effort or config.effort,
        seed=config.seed if arguments.seed is None else arguments.seed,
        timeout=config.timeout,
        store_root=config.store_root,
        suites=loaded.payload(),
    )
    said = explain(chosen, options)
    print("\n".join(said.lines()))
    return exit_code(said)
