"""Gate `exact`: rows on which the range is one value at every output, with all freedoms on."""

from __future__ import annotations

from contract.judge import Bench, Subject, Tally, compare


def run(bench: Bench, subject: Subject) -> Tally:
    """Bits equal: every set with the plain launch, the first ones with every launch and batch."""
    tally = Tally()
    alive = set(range(len(bench.options)))
    cases = bench.cases("exact")
    if not cases:
        tally.empty = True
        return tally.stop(
            "fail",
            f"none of {bench.exact_candidates} candidate rows is proven to be one value at every output",
        )
    for index, case in subject.chosen(bench, "exact"):
        for launch in subject.launches_at(bench, "exact", index):
            outcome, detail, _, outputs = subject.call(case, launch)
            if outcome:
                return tally.stop(outcome, f"{detail} ({case.label}, launch {launch.name})")
            if not compare(bench, subject, "exact", index, launch, outputs, tally, alive):
                return tally
    return tally
