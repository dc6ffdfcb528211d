"""Mutants of the code of GPU kernels, judged: what the gates let pass would be a hole in them.

Each implementation of the engine `ptx` is judged once as it is; then one instruction of what it launches is changed, and
the gates judge that by the path that every implementation takes. Calls that do not launch the changed text give what they
gave before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract import autocontrols
from contract.case import Case, Kernel, find
from contract.checks import Check
from contract.config import RunOptions
from contract.declare import Launch
from contract.engines import PTX
from contract.engines.ptx.mutants import mutants
from contract.engines.ptx.mutations import FLUSH, SPLIT, ULP
from contract.errors import ContractError
from contract.judge import PLAIN, Bench
from contract.judge_process import Judge, settle
from contract.mutation.subjects import (
    Call,
    Changed,
    Original,
    implementation_id,
    targets_of,
    unchanged_passes,
    verdict_of,
)
from contract.mutation.verdicts import EFFORT, FREEDOM, SURVIVED, Judged, Result

#: In this order, until one refuses.
GATES = ("shapes", "stress", "exact", "bounds")
#: A mutant has this many times the time of the kernel's slowest call, and so many seconds at least.
PATIENCE = 8
LEAST_SECONDS = 15.0


class _Original(Original):
    """The implementation as it is; keeps what its calls launched, too."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.texts: dict[str, str] = {}

    def payload(self, case: Case, launch: Launch, poison: str) -> dict[str, Any]:
        return {**super().payload(case, launch, poison), "texts": True}

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> Call:
        done = super().call(case, launch, poison, twice=twice)
        self.texts |= done[2].pop("texts", {})
        return done


class _Mutated(Changed):
    """The implementation with one text changed."""

    mutant: Mapping[str, Any]

    def payload(self, case: Case, launch: Launch, poison: str) -> dict[str, Any]:
        return {**super().payload(case, launch, poison), "mutant": dict(self.mutant)}

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> Call:
        before = self.original.known(case, launch, poison, twice)
        if before is None:
            # the kernel told of its approximate instructions at a later case
            before = self.original.call(case, launch, poison, twice=twice)
        if (self.mutant["entry"], self.mutant["digest"]) not in _launched(before):
            return before
        return self.compared(before, super().call(case, launch, poison, twice=twice))


def _launched(call: Call) -> list[tuple[str, str]]:
    return [(entry, digest) for entry, digest in call[2].get("launched", ())]


def targets(checks: Sequence[Check]) -> list[Check]:
    """One check of each implementation of the engine ptx among these."""
    return targets_of(checks, PTX)


def judge(
    checks: Sequence[Check],
    options: RunOptions,
    count: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Iterator[Judged]:
    """Mutants of each implementation that `targets` gave: `count` of each, at quick effort."""
    settle()
    process = Judge({**vars(options), "effort": EFFORT, "store_root": None}, lambda message: None)
    try:
        for check in checks:
            try:
                yield _implementation(process, check, options, count, on_result)
            except ContractError as error:
                yield Judged(implementation_id(check), refused=str(error))
    finally:
        process.close()


def _implementation(
    process: Judge,
    check: Check,
    options: RunOptions,
    count: int,
    on_result: Callable[[Result], None],
) -> Judged:
    spec = check.spec
    kernel = find(spec["name"], spec["profile"], spec["parameters"])
    bench = process.bench(kernel, {"kernel": dict(spec)})
    judged = Judged(implementation_id(check))
    original, missing = process.subject(kernel, check.as_json(), _Original)
    assert isinstance(original, _Original)
    if missing:
        judged.not_run = missing
        return judged
    worker = original.worker
    assert worker is not None
    worker.timeout = options.timeout
    if not unchanged_passes(GATES, bench, original, judged):
        return judged
    worker.timeout = max(LEAST_SECONDS, PATIENCE * original.slowest)
    chosen = _chosen(original)
    for place, (entry, digest) in enumerate(chosen):
        share = count // len(chosen) + (place < count % len(chosen))
        for mutant in mutants(original.texts[digest], entry, share, options.seed):
            subject, _ = process.subject(kernel, check.as_json(), _Mutated)
            assert isinstance(subject, _Mutated)
            subject.original = original
            subject.mutant = {"entry": entry, "digest": digest, "text": mutant.text}
            # the same calls, also where the changed instruction was the approximate or the atomic one
            for fact in ("approximate", "communicates", "configurations"):
                setattr(subject, fact, getattr(original, fact))
            result = _verdict(
                bench, subject, Result(judged.implementation, entry, mutant, SURVIVED)
            )
            if subject.touched or result.reason == "crash":
                subject.close()
            judged.results.append(result)
            on_result(result)
    return judged


def _chosen(original: _Original) -> list[tuple[str, str]]:
    """The texts that the calls launch, those first that most calls do: shapes differ in their constants, and most have a
    text of their own."""
    calls = Counter(one for _, call in original.calls.values() for one in _launched(call))
    return sorted(calls, key=lambda one: -calls[one])


def _verdict(bench: Bench, subject: _Mutated, result: Result) -> Result:
    result = verdict_of(GATES, bench, subject, result)
    freedom = freedom_of(subject.kernel, result.mutant.kind)
    if result.verdict == SURVIVED and freedom:
        return replace(result, verdict=FREEDOM, detail=freedom)
    return result


def freedom_of(kernel: Kernel, kind: str) -> str:
    """The freedom of the contract that a change of that kind stays within; '' where none has anything to do with it."""
    if kind == SPLIT:
        return "fused or separate multiply-add"
    if kind == FLUSH and not kernel.profile.keeps_subnormals:
        return "subnormals flushed or kept"
    bounded = [bound for bound in autocontrols.uses(kernel)[0].values() if "ulps" in bound]
    if kind == ULP and bounded:
        return f"a function within its bound ({', '.join(bounded)})"
    return ""


__all__ = ["GATES", "judge", "targets"]
