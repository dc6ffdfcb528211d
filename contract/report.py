"""What a report says, as functions of it: counts, SUMMARY, exit code, JSON, text of the terminal.

A kernel of the SUMMARY is a contract with one set of enumerated parameters under one profile. It
passes when its reference (where that was selected) and every implementation that ran pass, and at
least one ran.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contract.compiledbook import name_of
from contract.results import CheckResult, Report

#: Outcomes of a control that make it count as crashed; a plant that shall crash is red_as_planted.
CRASHED = ("crash", "timeout", "out_of_memory")
PLANTED = ("red_as_planted", "green_as_planted")
CONTROL_FIELDS = ("red_as_planted", "green_as_planted", "missed", "red_elsewhere", "crashed")
# where a call failed, behind why: a launch may be followed by its configuration in brackets
_PLACE = re.compile(r" \([^()\n]*, launch [^()\n]*(?:\([^()\n]*\))?\)\Z")


def counts(report: Report) -> tuple[int, int, int]:
    """(passed, failed, skipped) in checks; a required check that did not run has failed."""
    passed = sum(check.outcome in ("pass", *PLANTED) for check in report.checks)
    skipped = sum(check.outcome == "not_run" and not check.required for check in report.checks)
    ignored = sum(check.outcome == "not_applicable" for check in report.checks)
    return passed, len(report.checks) - passed - skipped - ignored, skipped


def kernels(report: Report) -> dict[tuple[str, str], str]:
    """(kernel, profile) -> 'pass', 'fail' or 'not_run', in order of appearance."""
    groups: dict[tuple[str, str], list[CheckResult]] = {}
    for check in report.checks:
        groups.setdefault((check.kernel, check.profile), []).append(check)
    return {key: _verdict([c for c in group if c.control is None]) for key, group in groups.items()}


def _verdict(checks: list[CheckResult]) -> str:
    if any(not check.good for check in checks):
        return "fail"
    references = [check for check in checks if check.implementation is None]
    ran = any(check.implementation is not None and check.outcome == "pass" for check in checks)
    return "pass" if ran and all(check.outcome == "pass" for check in references) else "not_run"


def summary(report: Report) -> dict[str, Any]:
    """The `summary` of the JSON report."""
    verdicts = Counter(kernels(report).values())
    controls = Counter(
        "crashed" if check.outcome in CRASHED else check.outcome
        for check in report.checks
        if check.control is not None
    )
    return {
        "kernels": sum(verdicts.values()),
        "pass": verdicts["pass"],
        "fail": verdicts["fail"],
        "not_run": verdicts["not_run"],
        "controls": {name: controls[name] for name in CONTROL_FIELDS},
        "limit_problems": len(report.limit_problems),
        "outputs_compared": sum(check.outputs_compared for check in report.checks),
        "from_receipts": sum(check.from_receipt for check in report.checks),
        "seconds": round(report.seconds, 3),
    }


def summary_line(report: Report) -> str:
    """The line that starts with SUMMARY."""
    facts = summary(report)
    controls = facts["controls"]
    absent = sum(c.control is not None and c.outcome == "not_run" for c in report.checks)
    parts = [
        f"{controls['red_as_planted']} red as planted",
        f"{controls['green_as_planted']} green as planted",
        f"{controls['missed']} missed",
    ]
    for count, word in (
        (controls["red_elsewhere"], "red elsewhere"),
        (controls["crashed"], "crashed"),
        (absent, "not run"),
    ):
        if count:
            parts.append(f"{count} {word}")
    line = (
        f"SUMMARY {_counted(facts['kernels'], 'kernel')}: {facts['pass']} pass, {facts['fail']} fail,"
        f" {facts['not_run']} not run; {_counted(sum(controls.values()) + absent, 'control')}:"
        f" {', '.join(parts)}; {_counted(facts['limit_problems'], 'limit problem')}"
    )
    receipts = facts["from_receipts"]
    return line + (f" ({_counted(receipts, 'check')} from receipts)" if receipts else "")


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def outputs_line(report: Report) -> str:
    """How many outputs were compared, and how many of them have one allowed value."""
    compared = sum(check.outputs_compared for check in report.checks)
    known = [c for c in report.checks if c.one_value_share is not None and c.outputs_compared]
    line = f"compared {compared:,} outputs"
    if known:
        weight = sum(check.outputs_compared for check in known)
        share = sum((c.one_value_share or 0.0) * c.outputs_compared for c in known) / weight
        line += f"; {100 * share:.2f} % of them have one allowed value"
    widest = max((c.widest_ulp or 0.0 for c in report.checks), default=0.0)
    if rows := sum(check.captured for check in report.checks):
        line += f"; {_counted(rows, 'row')} captured"
    if widest:
        line += f"; the widest range is {widest:,.3g} ulps of its row"
    return line


def counts_line(report: Report) -> str:
    """The last line: checks passed, failed, skipped."""
    passed, failed, skipped = counts(report)
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def exit_code(report: Report) -> int:
    """pytest's: 0 all good, 1 something is not, 2 interrupted, 5 nothing ran."""
    if report.interrupted:
        return 2
    if report.problems or report.limit_problems or any(not check.good for check in report.checks):
        return 1
    return 0 if any(check.outcome in ("pass", *PLANTED) for check in report.checks) else 5


#: Outcomes that are not good, the worst first: what computes wrong bits, what ends, what shows nothing.
WORST = ("fail", "crash", "out_of_memory", "timeout", "missed", "red_elsewhere", "not_run")


def worst_first(report: Report) -> list[CheckResult]:
    """The checks that are not good: by outcome, references before implementations before controls, then as they ran."""

    def rank(check: CheckResult) -> tuple[int, bool, bool]:
        control = check.control is not None
        return WORST.index(check.outcome), control, check.implementation is not None

    return sorted((check for check in report.checks if not check.good), key=rank)


def reproduce(check: CheckResult) -> str:
    """The command that replays the check."""
    return check.reproduce or f"contract run {check.id}"


def to_json(report: Report) -> dict[str, Any]:
    """The JSON report, schema 1 (docs/reports.md). Same inputs and seed: the same but for `seconds` and receipts."""
    environment = {"effort": report.effort, "seed": report.seed, **report.environment}
    checks = [
        {
            "id": check.id,
            "kernel": check.kernel,
            "profile": check.profile,
            "implementation": check.implementation,
            "engine": check.engine,
            "gate": check.gate,
            "control": check.control,
            "outcome": check.outcome,
            "outputs_compared": check.outputs_compared,
            "one_value_share": check.one_value_share,
            "widest_ulp": check.widest_ulp,
            **({"captured": check.captured} if check.captured else {}),
            **({"compiled": list(check.compiled)} if check.compiled else {}),
            **_evidence(check),
            "detail": check.detail,
            "reproduce": "" if check.good and not check.reproduce else reproduce(check),
            "from_receipt": check.from_receipt,
            "seconds": round(check.seconds, 3),
        }
        for check in report.checks
    ]
    troubles = run_problems(report)
    whole = {
        "schema": 1,
        "summary": summary(report),
        "environment": environment,
        "checks": checks,
        **({"problems": [{"kind": k, "text": t} for k, t in troubles]} if troubles else {}),
    }
    finite: dict[str, Any] = _finite(whole)
    return finite


def run_problems(report: Report) -> list[tuple[str, str]]:
    """What makes the run as a whole red, beside its checks: (kind, text)."""
    found = [("problem", text) for text in report.problems]
    found += [("limit problem", text) for text in report.limit_problems]
    if report.interrupted:
        found.append(("interrupted", f"interrupted after {len(report.checks)} checks"))
    return found


def _evidence(check: CheckResult) -> dict[str, Any]:
    """What only some checks have: power, digests, resources; all that `contract compare` reads beside the verdict."""
    found: dict[str, Any] = {}
    if check.required:
        found["required"] = True
    if check.power:
        found["power"] = dict(check.power)
    if check.bits:
        found["bits"] = dict(check.bits)
    if check.measured:
        found["resources"] = dict(check.measured)
    if check.recorded:
        found["functions"] = [
            {
                "function": name_of(entry),
                "architectures": {
                    name: code["resources"] for name, code in entry["architectures"].items()
                },
            }
            for entry in map(json.loads, check.recorded)
        ]
    return found


def _finite(value: Any) -> Any:
    """The same with null for infinities and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(report: Report) -> str:
    """The JSON report as text: sorted keys, indent 1, final newline."""
    return json.dumps(to_json(report), sort_keys=True, indent=1, allow_nan=False) + "\n"


def write_json(report: Report, path: Path) -> None:
    """Write the JSON report, all or nothing."""
    from contract.store import atomic_write_text

    atomic_write_text(path, json_text(report))


def words(outcome: str) -> str:
    """An outcome as it is printed."""
    return {"not_applicable": "n/a"}.get(outcome, outcome.replace("_", " "))


def reds(report: Report) -> list[str]:
    """Every check that is not good: outcome and id, detail, command; of one cause at several gates, where it was told."""
    lines = []
    told: dict[tuple[str, ...], str] = {}
    for check in (check for check in report.checks if not check.good):
        required = " (required)" if check.outcome == "not_run" else ""
        heading = f"{words(check.outcome).upper()}{required} {check.id}"
        cause, place = _cause(check.detail)
        owner = check.implementation or check.control or "reference"
        key = (check.kernel, check.profile, owner, check.engine, check.outcome, cause)
        if cause and key in told:
            lines.append(f"{heading}: the same as {told[key]}{place}")
            continue
        told[key] = check.id
        lines.append(heading)
        if check.planted:
            lines.append(f"    planted: {check.planted}")
        lines += [f"    {line}" for line in check.detail.splitlines()]
        lines.append(f"    reproduce: {reproduce(check)}")
    return lines


def again(report: Report) -> str:
    """The command that runs everything again that was not good; '' where all was."""
    return next((reproduce(c).replace(c.id, "--lf") for c in report.checks if not c.good), "")


def explain(report: Report) -> str:
    """The command that explains the worst failure whose values were refused; '' without one."""
    refused = (
        check
        for check in worst_first(report)
        if check.outcome == "fail" and check.implementation and check.gate != "limits"
    )
    return next((reproduce(c).replace("contract run", "contract explain", 1) for c in refused), "")


def _cause(detail: str) -> tuple[str, str]:
    """What went wrong, without the case and launch at which it was seen, and these: ' (shapes rows=4 d=8, launch plain)'."""
    found = _PLACE.search(detail)
    return (detail[: found.start()], found[0]) if found else (detail, "")


def reasons(report: Report, outcome: str, verbose: bool) -> list[str]:
    """Why checks have this outcome: reason, number of checks, whose; all ids if verbose."""
    groups: dict[str, list[CheckResult]] = {}
    for check in report.checks:
        if check.outcome == outcome and not check.required:
            groups.setdefault(" ".join(check.detail.split()) or "no reason given", []).append(check)
    lines = []
    for reason, group in groups.items():
        whose = sorted({check.implementation or check.control or "reference" for check in group})
        number = _counted(len(group), "check")
        lines.append(f"{words(outcome)}: {reason}: {number} of {', '.join(whose)}")
        if verbose:
            lines += [f"    {check.id}" for check in group]
    return lines


def engine_lines(report: Report) -> list[str]:
    """What ran on an engine that executes compiled code: with what it was compiled, for what target, how many checks."""
    groups: Counter[tuple[str, str]] = Counter()
    for check in report.checks:
        if check.outcome != "not_run":
            groups.update((check.engine, how) for how in check.compiled)
    return [
        f"engine {engine}: {how}: {_counted(number, 'check')}"
        for (engine, how), number in sorted(groups.items())
    ]


def code_lines(report: Report) -> list[str]:
    """Whose machine code is another one than recorded, and on how many architectures no other's is."""
    lines: list[str] = []
    architectures: set[str] = set()
    same = 0
    for check in report.checks:
        if check.outcome == "pass" and check.recorded:
            _, *moved = check.detail.splitlines()
            lines += [f"machine code of {check.id} {line}" for line in moved]
            same += not moved
            architectures.update(*(json.loads(entry)["architectures"] for entry in check.recorded))
    if same:
        which = "no other kernel's" if lines else "no kernel's"
        lines.append(
            f"machine code: {which} code changed on {_counted(len(architectures), 'architecture')}"
            f" ({_counted(same, 'implementation')} as recorded)"
        )
    return lines


def power_lines(report: Report) -> list[str]:
    """The share of outputs that leave their range without each rounding point, weakest first."""
    lines = []
    for check in report.checks:
        if check.power:
            shares = sorted(check.power.items(), key=lambda item: (item[1], item[0]))
            text = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares)
            lines.append(f"power {check.id}: {text}")
    return lines


def closing_lines(report: Report, verbosity: int = 0) -> Iterable[str]:
    """Everything below the table: reds, reasons, power, notes, problems, SUMMARY, counts."""
    yield from reds(report)
    if command := explain(report):
        yield f"which rounding, option or parameter it is: {command}"
    if verbosity >= 0:
        yield from reasons(report, "not_run", verbosity > 0)
        yield from engine_lines(report)
        yield from code_lines(report)
    if verbosity > 0:
        yield from reasons(report, "not_applicable", False)
        yield from power_lines(report)
    if verbosity >= 0:
        yield from (f"note: {note}" for note in report.notes)
    yield from (f"limit problem: {problem}" for problem in report.limit_problems)
    yield from (f"PROBLEM: {problem}" for problem in report.problems)
    if report.interrupted:
        yield f"INTERRUPTED after {len(report.checks)} checks; the same command continues"
    yield outputs_line(report)
    yield summary_line(report)
    yield counts_line(report)
