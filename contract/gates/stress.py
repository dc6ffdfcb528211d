"""Gate `stress`: drawn rows; rows that failed once come first."""

from __future__ import annotations

from contract.judge import PLAIN, Bench, Subject, Tally, compare


def run(bench: Bench, subject: Subject) -> Tally:
    """All outputs in range."""
    tally = Tally()
    alive = set(range(len(bench.options)))
    for index, case in subject.chosen(bench, "stress"):
        outcome, detail, _, outputs = subject.call(case, PLAIN)
        if outcome:
            return tally.stop(outcome, f"{detail} ({case.label})")
        if not compare(bench, subject, "stress", index, PLAIN, outputs, tally, alive):
            return tally
    return tally
