"""Gate `shapes`: typical data at every declared shape, and rows that were captured from a model."""

from __future__ import annotations

from contract.judge import PLAIN, Bench, Subject, Tally, compare


def run(bench: Bench, subject: Subject) -> Tally:
    """All outputs in range: every shape with the plain launch, the smallest ones with every launch; captured rows with the
    plain one."""
    tally = Tally()
    alive = set(range(len(bench.options)))
    for index, case in subject.chosen(bench, "shapes"):
        for launch in subject.launches_at(bench, "shapes", index):
            outcome, detail, _, outputs = subject.call(case, launch)
            if outcome:
                return tally.stop(outcome, f"{detail} ({case.label}, launch {launch.name})")
            if not compare(bench, subject, "shapes", index, launch, outputs, tally, alive):
                return tally
    for index, case in subject.chosen(bench, "captured"):
        outcome, detail, _, outputs = subject.call(case)
        if outcome:
            return tally.stop(outcome, f"{detail} ({case.label})")
        if not compare(bench, subject, "captured", index, PLAIN, outputs, tally, alive):
            return tally
        tally.captured += case.rows(bench.kernel)
        # they hold a model's weights, each its own: decoded, all of them do not fit
        case.forget()
    return tally
