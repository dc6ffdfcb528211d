"""Gate `bounds`: nothing outside an operand is read or written, and inputs keep their bits."""

from __future__ import annotations

from contract.case import Case
from contract.judge import Bench, Failure, Subject, Tally, same_bits


def run(bench: Bench, subject: Subject) -> Tally:
    """With NaN and with finite poison around every operand and in its gaps: the same bits, nothing written."""
    tally = Tally()
    kernel = bench.kernel
    launches = {launch.layout: launch for launch in reversed(subject.launches)}
    for case in _cases(bench):
        for launch in launches.values():
            seen = []
            for poison in ("finite", "nan"):
                outcome, detail, _, outputs = subject.call(case, launch, poison)
                where = f"{case.label}, launch {launch.name}"
                if outcome:
                    return tally.stop(outcome, f"{detail} ({where})")
                tally.compared += sum(int(b.size) for b in outputs.values())
                seen.append(outputs)
            differ = same_bits(kernel, seen[0], seen[1])
            if differ:
                tally.failure = Failure("bounds", case, launch, seen[1], bench.options[0])
                return tally.stop(
                    "fail",
                    f"poison around the inputs moves {differ} outputs: it reads outside an operand ({where})",
                )
    return tally


def _cases(bench: Bench) -> list[Case]:
    cases = [*bench.small_cases(), *bench.cases("exact")[:1]]
    return cases[:1] if bench.effort == "quick" else cases
