"""Gate `shapes`: typical data at every declared shape."""

from __future__ import annotations

from contract.judge import Bench, Subject, Tally, compare


def run(bench: Bench, subject: Subject) -> Tally:
    """All outputs in range: every shape with the plain launch, the smallest ones with every launch."""
    tally = Tally()
    alive = set(range(len(bench.options)))
    for index, case in subject.chosen(bench, "shapes"):
        for launch in subject.launches_at(bench, "shapes", index):
            outcome, detail, _, outputs = subject.call(case, launch)
            if outcome:
                return tally.stop(outcome, f"{detail} ({case.label}, launch {launch.name})")
            if not compare(bench, subject, "shapes", index, launch, outputs, tally, alive):
                return tally
    return tally
