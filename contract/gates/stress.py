"""Gate `stress`: drawn rows; rows that failed once come first."""

from __future__ import annotations

from contract.judge import Bench, Subject, Tally, judge_set


def run(bench: Bench, subject: Subject) -> Tally:
    """All outputs in range."""
    tally = Tally()
    for _ in judge_set(bench, subject, "stress", tally, set(range(len(bench.options)))):
        pass
    return tally
