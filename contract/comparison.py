"""`contract compare OLD.json NEW.json`: what became of each check between two reports.

What was shown and no longer is counts as a failure, as a red does: a kernel, gate or control that is gone, or that does
not run any more. A bit that moved inside its range is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.report import words
from contract.report_file import StoredCheck, StoredReport

#: Ids that a note lists before it only counts.
LISTED = 6
#: A check is named as slower from these on: judging shares its cores with whatever else runs.
SLOWER, SLOWER_SECONDS = 2.0, 1.0


@dataclass
class Comparison:
    """What was found, in the order in which it is printed.

    Attributes:
        failures: lines, one for each thing that is lost or red.
        notes: text -> the ids it is true of.
        about: lines on the two runs as a whole.
        both: checks that ran in both reports.
    """

    failures: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    about: list[str] = field(default_factory=list)
    both: int = 0

    def fail(self, check: str, text: str) -> None:
        self.failures.append(f"{check}: {text}")

    def note(self, check: str, text: str) -> None:
        self.notes.setdefault(text, []).append(check)


def compare(old: StoredReport, new: StoredReport) -> Comparison:
    """Compare two reports."""
    found = Comparison()
    for problem in new.problems:
        found.fail("the new run", problem)
    for problem in old.problems:
        found.about.append(f"the old run: {problem}")
    for name in old.checks.keys() | new.checks.keys():
        if not (name in old.checks and name in new.checks):
            _one_sided(found, old.checks.get(name), new.checks.get(name))
            continue
        before, now = old.checks[name], new.checks[name]
        found.both += int(before.ran and now.ran)
        if _outcomes(found, before, now):
            _bits(found, before, now)
            _counts(found, before, now)
            _power(found, before, now)
            _resources(found, before, now)
    found.failures.sort()
    found.notes = {text: sorted(found.notes[text]) for text in sorted(found.notes)}
    found.about += _environments(old, new)
    found.about += _speed(old, new)
    return found


def _one_sided(found: Comparison, old: StoredCheck | None, new: StoredCheck | None) -> None:
    if old is not None:
        if old.ran:
            found.fail(
                old.id, f"gone: it was {words(old.outcome)}, and the new report has no such check"
            )
        else:
            found.note(old.id, f"gone, and was {words(old.outcome)} before")
    elif new is not None:
        if new.good:
            found.note(new.id, f"new: {words(new.outcome)}")
        else:
            found.fail(new.id, f"new, and {_red(new)}")


def _outcomes(found: Comparison, old: StoredCheck, new: StoredCheck) -> bool:
    """Judge the two outcomes; whether both ran and are good."""
    was = words(old.outcome)
    if not new.good:
        still = "still " if old.outcome == new.outcome else f"was {was}, is "
        found.fail(new.id, still + _red(new))
    elif old.ran and not new.ran:
        reason = f": {_first(new.detail)}" if new.detail else ""
        found.fail(new.id, f"was {was}, is {words(new.outcome)}{reason}")
    elif not old.good:
        found.note(new.id, f"was {was}, is {words(new.outcome)}")
    elif old.ran and new.ran:
        return True
    elif old.outcome != new.outcome:
        found.note(new.id, f"was {was}, is {words(new.outcome)}")
    return False


def _red(check: StoredCheck) -> str:
    required = " though required" if check.outcome == "not_run" else ""
    again = f"; {check.reproduce}" if check.reproduce else ""
    return f"{words(check.outcome)}{required}: {_first(check.detail)}{again}"


def _first(text: str) -> str:
    return text.strip().partition("\n")[0] or "no detail"


def _bits(found: Comparison, old: StoredCheck, new: StoredCheck) -> None:
    if not (old.bits or new.bits):
        return
    if not (old.bits and new.bits):
        which = "old" if new.bits else "new"
        found.note(new.id, f"the {which} report has no digests: whether bits moved is not known")
    elif old.bits.get("inputs") != new.bits.get("inputs"):
        found.note(new.id, "other inputs or launches: whether bits moved is not known")
    elif old.bits.get("outputs") != new.bits.get("outputs"):
        found.note(new.id, "bits moved inside the range")


def _counts(found: Comparison, old: StoredCheck, new: StoredCheck) -> None:
    if old.outputs_compared and not new.outputs_compared:
        found.fail(new.id, f"compares no output any more, was {old.outputs_compared:,}")
    elif new.outputs_compared < old.outputs_compared:
        found.note(
            new.id, f"compares fewer outputs: {old.outputs_compared:,} -> {new.outputs_compared:,}"
        )
    if old.gate != new.gate:
        found.note(new.id, f"caught by another gate: {old.gate} -> {new.gate}")
    if (old.widest_ulp or 0.0) != (new.widest_ulp or 0.0):
        wider = (new.widest_ulp or 0.0) > (old.widest_ulp or 0.0)
        change = f"{old.widest_ulp or 0.0:.3g} -> {new.widest_ulp or 0.0:.3g} ulps"
        found.note(new.id, f"widest range {'wider' if wider else 'narrower'}: {change}")
    if (old.one_value_share or 0.0) > (new.one_value_share or 0.0):
        change = f"{_percent(old.one_value_share or 0.0)} -> {_percent(new.one_value_share or 0.0)}"
        found.note(new.id, f"fewer outputs have one allowed value: {change}")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _power(found: Comparison, old: StoredCheck, new: StoredCheck) -> None:
    for name, share in sorted(old.power.items()):
        now = new.power.get(name, 0.0)
        if share and not now:
            gone = "is no longer measured" if name not in new.power else "is 0"
            found.fail(new.id, f"power of {name} {gone}, was {_percent(share)}")
        elif now != share:
            change = "falls" if now < share else "rises"
            found.note(new.id, f"power of {name} {change}: {_percent(share)} -> {_percent(now)}")
    for name in sorted(new.power.keys() - old.power.keys()):
        found.note(new.id, f"power of {name} is new: {_percent(new.power[name])}")


def _resources(found: Comparison, old: StoredCheck, new: StoredCheck) -> None:
    before, now = dict(_flat_resources(old)), dict(_flat_resources(new))
    if not before or not now:
        return
    for name in sorted(before.keys() | now.keys()):
        a, b = before.get(name), now.get(name)
        if a != b:
            change = " -> ".join("none" if one is None else f"{one:,}" for one in (a, b))
            found.note(new.id, f"{name} {change}")


def _flat_resources(check: StoredCheck) -> Iterator[tuple[str, int]]:
    yield from check.resources.items()
    for one in check.functions:
        for architecture, counts in one["architectures"].items():
            for name, count in counts.items():
                yield f"{one['function']} on {architecture}: {name}", count


def _environments(old: StoredReport, new: StoredReport) -> Iterator[str]:
    before, now = dict(_flat(old.environment)), dict(_flat(new.environment))
    for name in sorted(before.keys() | now.keys()):
        a, b = before.get(name, "absent"), now.get(name, "absent")
        if a != b:
            yield f"environment: {name}: {a} -> {b}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, one in value.items():
        if isinstance(one, dict):
            yield from _flat(one, f"{prefix}{name}.")
        else:
            yield prefix + str(name), str(one)


def _speed(old: StoredReport, new: StoredReport) -> Iterator[str]:
    """How long judging took, of the checks that were judged in both runs; kernels themselves are not timed."""
    pairs = [
        (old.checks[name].seconds, check.seconds, name)
        for name, check in new.checks.items()
        if name in old.checks
        and check.ran
        and old.checks[name].ran
        and not (check.from_receipt or old.checks[name].from_receipt)
    ]
    if not pairs:
        return
    before, now = sum(a for a, _, _ in pairs), sum(b for _, b, _ in pairs)
    yield f"judging {_counted(len(pairs), 'check')} took {before:.1f} s, then {now:.1f} s"
    slower = [(b - a, a, b, n) for a, b, n in pairs if b > SLOWER * a and b - a > SLOWER_SECONDS]
    for _, a, b, name in sorted(slower, reverse=True)[:LISTED]:
        yield f"judging took longer: {name}: {a:.1f} s -> {b:.1f} s"


def lines(found: Comparison) -> Iterator[str]:
    """What is printed: failures, notes, the runs, and the line that counts."""
    for line in _lines(found):
        # what a file holds may drive a terminal, feign another line, or have no encoding
        yield "".join(c if c.isprintable() else "?" for c in line)


def _lines(found: Comparison) -> Iterator[str]:
    yield from (f"FAIL {text}" for text in found.failures)
    for text, ids in found.notes.items():
        more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
        yield f"note: {text}: {', '.join(ids[:LISTED])}{more}"
    yield from (f"note: {text}" for text in found.about)
    noted = sum(map(len, found.notes.values()))
    yield (
        f"COMPARED {_counted(found.both, 'check')} that ran in both:"
        f" {_counted(len(found.failures), 'failure')}, {_counted(noted, 'note')}"
    )


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def exit_code(found: Comparison) -> int:
    """0 nothing lost, 1 something red or lost, 5 no check ran in both."""
    if found.failures:
        return 1
    return 0 if found.both else 5
