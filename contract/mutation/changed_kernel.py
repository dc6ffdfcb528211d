"""An implementation under one kernel: what of its source runs, and what the gates make of a change of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contract import receipts, sources
from contract.case import Case, Kernel, find
from contract.checks import Check
from contract.config import RunOptions
from contract.declare import Launch
from contract.engines import HOST
from contract.judge import PLAIN, Bench
from contract.judge_process import Judge
from contract.mutation.changes import Change, Ran
from contract.mutation.subjects import (
    Call,
    Changed,
    Original,
    implementation_id,
    unchanged_passes,
    verdict_of,
)
from contract.mutation.verdicts import KILLED, NOT_RUN, SURVIVED, Judged, Result
from contract.store import Store, digest
from contract.worker import Worker

#: In this order, the quickest first, until one refuses.
GATES = ("exact", "stress", "shapes", "bounds", "invariance")
#: A mutant has this many times the time of the slowest call, under a tracer, and so many seconds at least.
PATIENCE = 8
LEAST_SECONDS = 6.0

_KEPT = ("verdict", "gate", "reason", "detail", "calls", "moved")


class _Changed(Changed):
    """The implementation with one change of its source."""

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> Call:
        # None where the gate makes its cases as it goes, and compares them itself
        before = self.original.known(case, launch, poison, twice)
        return self.compared(before, super().call(case, launch, poison, twice=twice))


class ChangedKernel:
    """An implementation under one kernel: as it is, once that is needed, and with changes."""

    def __init__(self, process: Judge, check: Check, options: RunOptions, store: Store, key: str):
        self.process, self.check, self.options = process, check, options
        self.store, self.key = store, key
        spec = check.spec
        self.kernel: Kernel = find(spec["name"], spec["profile"], spec["parameters"])
        self.id = implementation_id(check)
        self.files = files_of(check)
        self.original: Original | None = None
        # file -> what ran of it (contract.mutation.changes.Ran), as JSON
        self._ran: dict[str, dict[str, Any]] = {}

    @property
    def bench(self) -> Bench:
        return self.process.bench(self.kernel, {"kernel": dict(self.check.spec)})

    def close(self) -> None:
        """End its worker, and forget what its calls gave."""
        if self.original is not None:
            self.original.close()
        self.original = None

    def known(self, judged: Judged) -> bool:
        """Whether it is known what ran; `judged` says why not."""
        kept = None if self.options.fresh else self.store.get(digest([self.key, "ran"]))
        if kept is not None:
            self._ran = kept
        return kept is not None or self._start(judged)

    @property
    def ran(self) -> dict[str, Ran]:
        return {
            file: Ran(frozenset(one["lines"]), frozenset(one["arms"]), one["keys"], one["casts"])
            for file, one in self._ran.items()
        }

    def result(self, change: Change, judged: Judged) -> Result | None:
        """What its gates make of a change, from the store or now; None where they refuse what it is made of."""
        kept = None if self.options.fresh else self.store.get(self._key(change))
        if kept is not None and set(kept) == set(_KEPT):
            return Result(judged.implementation, _entry(change), change, **kept)
        return self._judged(change, judged)

    def _start(self, judged: Judged) -> bool:
        """Whether the gates let it pass as it is; then its calls and lines are known."""
        original, missing = self.process.subject(self.kernel, self.check.as_json(), Original)
        assert isinstance(original, Original)
        if missing:
            judged.not_run = f"{self.id}: {missing}"
            return False
        payload = {"suites": dict(self.options.suites), "files": list(self.files)}
        worker = self._worker("contract.mutation.applied:watch", payload)
        original.worker, self.original = worker, original
        for gate in GATES:
            if not unchanged_passes([gate], self.bench, original, judged):
                if judged.implementation != self.id and judged.refused:
                    judged.refused = f"{self.id} is {judged.refused}"
                return False
            # a worker that a gate ended begins anew
            self._note(worker.call("contract.mutation.applied:seen", {}, {}).payload)
        self.store.put(digest([self.key, "ran"]), self._ran)
        return True

    def _note(self, told: Mapping[str, Any]) -> None:
        """Add to `ran` what the worker told."""
        for file, lines in told.get("lines", {}).items():
            known = self._ran.setdefault(file, {"lines": [], "arms": [], "keys": {}, "casts": {}})
            notes = told["notes"][file]
            known["lines"] = sorted({*known["lines"], *lines})
            known["arms"] = sorted({*known["arms"], *notes["arms"]})
            for place, keys in notes["keys"].items():
                known["keys"][place] = sorted({*known["keys"].get(place, ()), *keys})
            for place, kinds in notes["casts"].items():
                cast = known["casts"].setdefault(place, {})
                for kind, formats in kinds.items():
                    cast[kind] = sorted({*cast.get(kind, ()), *formats})

    def _worker(self, setup: str, payload: Mapping[str, Any]) -> Worker:
        return self.process.new_worker(self.check.requires, HOST, setup, payload)

    def _key(self, change: Change) -> str:
        return digest([self.key, "change", change.text])

    def _judged(self, change: Change, judged: Judged) -> Result | None:
        if self.original is None and not self._start(judged):
            return None
        assert self.original is not None
        subject, _ = self.process.subject(self.kernel, self.check.as_json(), _Changed)
        assert isinstance(subject, _Changed)
        payload = {
            "suites": dict(self.options.suites), "file": change.path, "text": change.text, "name": change.name,
            "value": change.value, "files": list(self.files),
        }  # fmt: skip
        subject.original = self.original
        subject.worker = self._worker("contract.mutation.applied:change", payload)
        subject.worker.timeout = max(LEAST_SECONDS, PATIENCE * self.original.slowest)
        result = Result(judged.implementation, _entry(change), change, SURVIVED)
        try:
            put = subject.worker.call("contract.mutation.applied:places", {}, {})
            if put.outcome != "ok" or not put.payload["places"]:
                said = put.detail or "no function that exists has this code"
                result = replace(result, verdict=NOT_RUN, detail=f"cannot be put in place: {said}")
            else:
                result = verdict_of(GATES, self.bench, subject, result)
                if result.verdict == KILLED:
                    result = replace(result, detail=f"{self.kernel.id}: {result.detail}")
        finally:
            subject.close()
        self.store.put(self._key(change), {name: getattr(result, name) for name in _KEPT})
        return result


def files_of(check: Check) -> tuple[str, ...]:
    """The Python files of an implementation's suite that its module reaches, by their real paths."""
    reached, _ = receipts.closure_of((check.module,))
    names = [name for name in reached if ":" not in name]
    return tuple(sorted({str(path) for path in sources.module_files(names).values() if path.suffix == ".py"}))  # fmt: skip


def _entry(change: Change) -> str:
    return f"{change.file}:{change.function or change.name}"


__all__ = ["GATES", "ChangedKernel"]
