"""Gate `shapes`: typical data at every declared shape, and rows that were captured from a model."""

from __future__ import annotations

from contract.judge import Bench, Subject, Tally, judge_set


def run(bench: Bench, subject: Subject) -> Tally:
    """All outputs in range: every shape with the plain launch, the smallest ones with every launch; captured rows with the
    plain one."""
    tally = Tally()
    alive = set(range(len(bench.options)))
    for _ in judge_set(bench, subject, "shapes", tally, alive):
        pass
    if tally.outcome:
        return tally
    for case in judge_set(bench, subject, "captured", tally, alive):
        tally.captured += case.rows(bench.kernel)
        # they hold a model's weights, each its own: decoded, all of them do not fit
        case.forget()
    return tally
