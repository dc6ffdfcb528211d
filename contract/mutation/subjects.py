"""The implementation as it is, and with a change: the gates call both the same way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contract import gates
from contract.case import Case
from contract.checks import Check
from contract.declare import Launch
from contract.judge import PLAIN, Bench, Outputs, Subject, same_bits
from contract.mutation.verdicts import EQUAL, KILLED, NOT_RUN, SURVIVED, Judged, Result, reason_of

Call = tuple[str, str, dict[str, Any], Outputs]


class Original(Subject):
    """The implementation as it is; keeps what its calls gave."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # with its case: no other may come to lie where it lay
        self.calls: dict[tuple[Any, ...], tuple[Case, Call]] = {}
        self.slowest = 0.0

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> Call:
        start = time.monotonic()
        done = super().call(case, launch, poison, twice=twice)
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.calls[key_of(case, launch, poison, twice)] = case, done
        return done

    def known(self, case: Case, launch: Launch, poison: str, twice: bool) -> Call | None:
        """What a call gave; None where there was none."""
        found = self.calls.get(key_of(case, launch, poison, twice))
        return None if found is None else found[1]


class Changed(Subject):
    """The implementation with one change.

    Attributes:
        original: what it was made of; ran: its calls; moved: outputs of them that were others than the original's.
    """

    original: Original
    ran = moved = 0

    def compared(self, before: Call | None, done: Call) -> Call:
        """Count what one call moved."""
        self.ran += 1
        if before is not None and not done[0]:
            self.moved += same_bits(self.kernel, before[3], done[3])
        return done


def key_of(case: Case, launch: Launch, poison: str, twice: bool) -> tuple[Any, ...]:
    """What tells one call from another; a bench keeps its cases."""
    return id(case), launch.name, poison, twice


def targets_of(checks: Sequence[Check], engine: str) -> list[Check]:
    """One check of each implementation of an engine among these."""
    found: dict[str, Check] = {}
    for check in checks:
        if check.kind == "gate" and check.engine == engine:
            found.setdefault(implementation_id(check), check)
    return list(found.values())


def implementation_id(check: Check) -> str:
    """The id of a gate's check without the gate."""
    return check.id.rpartition("/")[0]


def unchanged_passes(
    names: Sequence[str], bench: Bench, original: Original, judged: Judged
) -> bool:
    """Whether these gates let the implementation pass as it is; `judged` then says why not."""
    for gate in names:
        tally = gates.run(gate, bench, original)
        if tally.outcome == "not_run":
            judged.not_run = tally.detail
            return False
        if tally.outcome not in ("pass", "not_applicable"):
            judged.refused = f"refused before anything is changed: {gate}: {tally.detail}"
            return False
    return True


def verdict_of(names: Sequence[str], bench: Bench, subject: Changed, result: Result) -> Result:
    """The result with what these gates make of the change, in their order until one refuses it."""
    for gate in names:
        tally = gates.run(gate, bench, subject)
        result = replace(result, calls=subject.ran, moved=subject.moved)
        if tally.outcome == "not_run":
            return replace(result, verdict=NOT_RUN, gate=gate, detail=tally.detail)
        if tally.outcome not in ("pass", "not_applicable"):
            reason = reason_of(tally.outcome, tally.detail)
            return replace(result, verdict=KILLED, gate=gate, reason=reason, detail=tally.detail)
    return replace(result, verdict=SURVIVED if subject.moved else EQUAL)
