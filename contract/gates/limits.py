"""Gate `limits`: counted resources of one launch against the record."""

from __future__ import annotations

from contract.judge import PLAIN, Bench, Subject, Tally
from contract.recordbook import RESOURCES, book_of, judge_entry


def run(bench: Bench, subject: Subject) -> Tally:
    """Within the record of this architecture: worse fails, better fails as improved, missing fails."""
    tally = Tally()
    kernel = bench.kernel
    case = bench.cases("limits")[0]
    payload = subject.payload(case, PLAIN, "finite")
    # no automatic control is judged by resources
    assert subject.worker is not None
    reply = subject.worker.call("contract.engines.host:measure", payload, dict(case.operands))
    if reply.outcome != "ok":
        return tally.stop("crash" if reply.outcome == "exception" else reply.outcome, reply.detail)
    measured = reply.payload.get("resources")
    if measured is None:
        return tally.stop("not_applicable", "it makes no torch call, so nothing can be counted")
    tally.compared = len(RESOURCES)
    tally.measured = {key: int(measured[key]) for key in RESOURCES}
    outcome, detail = judge_entry(
        book_of(kernel, subject.target),
        kernel,
        str(subject.target["name"]),
        PLAIN.name,
        tally.measured,
    )
    return tally.stop(outcome, detail)
