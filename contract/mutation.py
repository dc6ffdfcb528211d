"""Mutants of the code of GPU kernels, judged: what the gates let pass would be a hole in them.

Each implementation of the engine `ptx` is judged once as it is; then one instruction of what it launches is changed, and
the gates judge that by the path that every implementation takes. Calls that do not launch the changed text give what they
gave before.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contract import autocontrols, gates
from contract.case import Case, Kernel, find
from contract.checks import Check
from contract.config import RunOptions
from contract.declare import Launch
from contract.engines import PTX
from contract.engines.ptx.mutants import Mutant, mutants
from contract.engines.ptx.mutations import FLUSH, SPLIT, ULP
from contract.errors import ContractError
from contract.judge import PLAIN, Bench, Outputs, Subject, same_bits
from contract.judge_process import Judge, settle

#: In this order, until one refuses.
GATES = ("shapes", "stress", "exact", "bounds")
EFFORT = "quick"
#: A mutant has this many times the time of the kernel's slowest call, and so many seconds at least.
PATIENCE = 8
LEAST_SECONDS = 15.0

KILLED, EQUAL, FREEDOM, SURVIVED, NOT_RUN = "killed", "equal", "freedom", "survived", "not run"
#: What an engine's fault is about -> words of its message.
_FAULTS = {
    "race": r"a race in|two lanes write different|cp\.async is still writing",
    "out of bounds": r"out of bounds|more than \d+ bytes",
    "misaligned": r"misaligned",
    "never written": r"never defined|never written",
    "barrier": r"barrier|deadlock|divergence|by some lanes|member mask",
    "no end": r"loop without an end",
}
_VALUES = {
    "values": r"are not allowed",
    "poison": r"poison around",
    "writes outside": r"wrote (to its input|outside)",
}

Call = tuple[str, str, dict[str, Any], Outputs]


@dataclass(frozen=True)
class Result:
    """What became of one mutant.

    Attributes:
        implementation: id of its checks, without the gate.
        verdict: KILLED, EQUAL (no output of any call moved), FREEDOM (outputs moved within what the contract leaves free),
            SURVIVED, or NOT_RUN (the executor does not take it).
        gate: that refused it; reason: as what, in a word or two; detail: the verdict's own words, or the freedom.
        calls: how many calls launched the changed text; moved: how many outputs of them were others than before.
    """

    implementation: str
    entry: str
    mutant: Mutant
    verdict: str
    gate: str = ""
    reason: str = ""
    detail: str = ""
    calls: int = 0
    moved: int = 0

    def as_json(self) -> dict[str, Any]:
        """Without the text of the PTX."""
        shown = {key: value for key, value in vars(self).items() if key != "mutant"}
        return shown | {k: v for k, v in vars(self.mutant).items() if k != "text"}


@dataclass
class Judged:
    """One implementation: results of its mutants, or why there are none."""

    implementation: str
    results: list[Result] = field(default_factory=list)
    not_run: str = ""
    refused: str = ""

    def count(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results)


class _Original(Subject):
    """The implementation as it is; keeps what its calls gave, and what they launched."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.calls: dict[tuple[Any, ...], Call] = {}
        self.texts: dict[str, str] = {}
        self.slowest = 0.0

    def payload(self, case: Case, launch: Launch, poison: str) -> dict[str, Any]:
        return {**super().payload(case, launch, poison), "texts": True}

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> Call:
        start = time.monotonic()
        done = super().call(case, launch, poison, twice=twice)
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.texts |= done[2].pop("texts", {})
        self.calls[_key(case, launch, poison, twice)] = done
        return done


class _Mutated(Subject):
    """The implementation with one text changed."""

    original: _Original
    mutant: Mapping[str, Any]
    ran = moved = 0

    def payload(self, case: Case, launch: Launch, poison: str) -> dict[str, Any]:
        return {**super().payload(case, launch, poison), "mutant": dict(self.mutant)}

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> Call:
        before = self.original.calls.get(_key(case, launch, poison, twice))
        if before is None:
            # the kernel told of its approximate instructions at a later case
            before = self.original.call(case, launch, poison, twice=twice)
        if (self.mutant["entry"], self.mutant["digest"]) not in _launched(before):
            return before
        self.ran += 1
        done = super().call(case, launch, poison, twice=twice)
        if not done[0]:
            self.moved += same_bits(self.kernel, before[3], done[3])
        return done


def _key(case: Case, launch: Launch, poison: str, twice: bool) -> tuple[Any, ...]:
    # a bench keeps its cases
    return id(case), launch.name, poison, twice


def _launched(call: Call) -> list[tuple[str, str]]:
    return [(entry, digest) for entry, digest in call[2].get("launched", ())]


def targets(checks: Sequence[Check]) -> list[Check]:
    """One check of each implementation of the engine ptx among these."""
    found: dict[str, Check] = {}
    for check in checks:
        if check.kind == "gate" and check.engine == PTX:
            found.setdefault(_id(check), check)
    return list(found.values())


def _id(check: Check) -> str:
    return check.id.rpartition("/")[0]


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
                yield Judged(_id(check), refused=str(error))
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
    judged = Judged(_id(check))
    original, missing = process.subject(kernel, check.as_json(), _Original)
    assert isinstance(original, _Original)
    if missing:
        judged.not_run = missing
        return judged
    worker = original.worker
    assert worker is not None
    worker.timeout = options.timeout
    for gate in GATES:
        tally = gates.run(gate, bench, original)
        if tally.outcome == "not_run":
            judged.not_run = tally.detail
            return judged
        if tally.outcome not in ("pass", "not_applicable"):
            judged.refused = f"refused before anything is changed: {gate}: {tally.detail}"
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
    calls = Counter(one for call in original.calls.values() for one in _launched(call))
    return sorted(calls, key=lambda one: -calls[one])


def _verdict(bench: Bench, subject: _Mutated, result: Result) -> Result:
    for gate in GATES:
        tally = gates.run(gate, bench, subject)
        result = replace(result, calls=subject.ran, moved=subject.moved)
        if tally.outcome == "not_run":
            return replace(result, verdict=NOT_RUN, gate=gate, detail=tally.detail)
        if tally.outcome not in ("pass", "not_applicable"):
            reason = _reason(tally.outcome, tally.detail)
            return replace(result, verdict=KILLED, gate=gate, reason=reason, detail=tally.detail)
    if not subject.moved:
        return replace(result, verdict=EQUAL)
    freedom = freedom_of(subject.kernel, result.mutant.kind)
    return replace(result, verdict=FREEDOM, detail=freedom) if freedom else result


def _reason(outcome: str, detail: str) -> str:
    """As what a gate refused, in a word or two."""
    if outcome != "fail":
        return outcome.replace("_", " ")
    for name, words in (_VALUES | _FAULTS).items():
        if re.search(words, detail):
            return name
    return "other"


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


def lines(judged: Judged) -> list[str]:
    """What a terminal shows of one implementation."""
    name = judged.implementation
    if judged.not_run or judged.refused:
        return [f"{name}: {'not run: ' + judged.not_run if judged.not_run else judged.refused}"]
    found = [f"{name}: {summary(judged.results)}"]
    for result in judged.results:
        if result.verdict in (SURVIVED, NOT_RUN):
            mutant = result.mutant
            found += [
                f"  {result.verdict}: {mutant.kind}, line {mutant.line} of {result.entry}: "
                + (
                    result.detail
                    or f"{result.moved:,} outputs of {result.calls} calls moved, all allowed"
                ),
                f"    - {mutant.before}",
                f"    + {mutant.after}",
            ]
    return found


def summary(results: Sequence[Result]) -> str:
    """Counts by verdict, and of those killed by reason."""
    counts = Counter(result.verdict for result in results)
    reasons = Counter(result.reason for result in results if result.verdict == KILLED)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    freedoms = Counter(result.detail for result in results if result.verdict == FREEDOM)
    free = ", ".join(f"{name} {count}" for name, count in freedoms.most_common())
    told = [
        f"{len(results)} mutants: {counts[KILLED]} killed" + (f" ({why})" if why else ""),
        f"{counts[EQUAL]} equal on every input",
        f"{counts[FREEDOM]} inside a freedom" + (f" ({free})" if free else ""),
        f"{counts[SURVIVED]} survived",
    ]
    if counts[NOT_RUN]:
        told.append(f"{counts[NOT_RUN]} not run")
    rest = counts[KILLED] + counts[SURVIVED]
    rate = f"; kill rate {100 * counts[KILLED] / rest:.1f} %" if rest else ""
    return ", ".join(told) + rate


def exit_code(found: Sequence[Judged]) -> int:
    """1 where a mutant survived or a kernel was refused as it is; 5 where one was not run, or nothing was changed."""
    if any(judged.refused or judged.count(SURVIVED) for judged in found):
        return 1
    ran = [judged for judged in found if len(judged.results) > judged.count(NOT_RUN)]
    return 0 if found and len(ran) == len(found) else 5


def as_json(found: Sequence[Judged], seed: int) -> dict[str, Any]:
    """The whole run as JSON values."""
    results = [result for judged in found for result in judged.results]
    return {
        "seed": seed,
        "effort": EFFORT,
        "gates": list(GATES),
        "exit_code": exit_code(found),
        "counts": dict(Counter(result.verdict for result in results)),
        "not_run": {j.implementation: j.not_run for j in found if j.not_run},
        "refused": {j.implementation: j.refused for j in found if j.refused},
        "mutants": [result.as_json() for result in results],
    }


__all__ = ["Judged", "Result", "as_json", "exit_code", "judge", "lines", "summary", "targets"]
