"""Gate `exact`: rows on which the range is one value at every output, with all freedoms on."""

from __future__ import annotations

from contract.judge import Bench, Subject, Tally, judge_set


def run(bench: Bench, subject: Subject) -> Tally:
    """Bits equal: every set with the plain launch, the first ones with every launch and batch."""
    tally = Tally()
    if not bench.cases("exact"):
        tally.empty = True
        return tally.stop(
            "fail",
            f"none of {bench.exact_candidates} candidate rows is proven to be one value at every output",
        )
    for _ in judge_set(bench, subject, "exact", tally, set(range(len(bench.options)))):
        pass
    return tally
