"""Gate `limits`: counted resources of one launch against the record."""

from __future__ import annotations

from typing import Any

from contract import compiledbook, recordbook
from contract.engines import ENGINES, GPU, PTX
from contract.judge import PLAIN, Bench, Subject, Tally
from contract.recordbook import RESOURCES, book_of, judge_entry


def run(bench: Bench, subject: Subject) -> Tally:
    """Within the record of this architecture, and of every one that GPU code is compiled for: worse fails, better fails
    as improved, missing fails."""
    if subject.engine == PTX:
        return _compiled(bench, subject)
    if subject.engine == GPU:
        return _live(bench, subject)
    tally = Tally()
    kernel = bench.kernel
    measured = _measured(bench, subject, f"{ENGINES[subject.engine]}:measure", "resources", tally)
    if tally.outcome:
        return tally
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


def _compiled(bench: Bench, subject: Subject) -> Tally:
    """What the launch compiles to, on every architecture; nothing is executed."""
    tally = Tally()
    functions = _measured(bench, subject, "contract.compiled.measure:measure", "functions", tally)
    if tally.outcome:
        return tally
    if not functions:
        return tally.stop("fail", "it launches no compiled kernel, so nothing was counted")
    launch = bench.kernel.id, str(subject.target["name"]), PLAIN.name
    shape = recordbook.shape_of(bench.kernel)
    counted = [
        c["resources"] for f in functions for c in f["architectures"].values() if "error" not in c
    ]
    tally.compared = sum(map(len, counted))
    path, data = book_of(bench.kernel, subject.target)
    if path is None:
        return tally.stop("not_run", data["absent"])
    verdict = compiledbook.judge(data, launch, shape, functions)
    if verdict.fits:
        tally.recorded = compiledbook.entries(launch, shape, functions)
    return tally.stop(verdict.outcome, verdict.detail)


def _live(bench: Bench, subject: Subject) -> Tally:
    """What the driver says of the functions that it loaded, against the record of their architecture."""
    tally = Tally()
    functions = _measured(bench, subject, f"{ENGINES[GPU]}:measure", "live", tally)
    if tally.outcome:
        return tally
    if not functions:
        return tally.stop("fail", "it launches no compiled kernel, so nothing was counted")
    launch = bench.kernel.id, str(subject.target["name"]), PLAIN.name
    path, data = book_of(bench.kernel, subject.target)
    if path is None:
        return tally.stop("not_run", data["absent"])
    tally.compared, outcome, detail = compiledbook.judge_loaded(
        data, launch, recordbook.shape_of(bench.kernel), functions
    )
    return tally.stop(outcome, detail)


def _measured(bench: Bench, subject: Subject, function: str, key: str, tally: Tally) -> Any:
    """What the worker counted; where it did not, `tally` tells."""
    case = bench.cases("limits")[0]
    payload = subject.payload(case, PLAIN, "finite")
    # no automatic control is judged by resources
    assert subject.worker is not None
    reply = subject.worker.call(function, payload, dict(case.operands))
    if reply.outcome == "ok":
        for word, outcome in (("not_run", "not_run"), ("bad", "fail")):
            if why := reply.payload.get(word):
                tally.stop(outcome, str(why))
                return None
        return reply.payload.get(key)
    tally.stop("crash" if reply.outcome == "exception" else reply.outcome, reply.detail)
    return None
