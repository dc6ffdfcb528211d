"""What became of mutants: verdicts, their counts, how they are printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

EFFORT = "quick"
KILLED, EQUAL, FREEDOM, SURVIVED, NOT_RUN = "killed", "equal", "freedom", "survived", "not run"
#: What an engine's fault is about -> words of its message.
_FAULTS = {
    "race": r"a race in|non-coherent cache|two lanes write different|cp\.async is still writing",
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
    "shape or dtype": r"has (shape|dtype) .*, the contract needs",
    "not invariant": r"twice moves|of the even rows|declared invariant",
    "shared memory": r"shares memory with|writes over the result",
}


class Mutant(Protocol):
    """One change.

    Attributes:
        line: that is changed, the first is 1; kind: how, in words; before, after: what stood there, and what stands there.
    """

    @property
    def line(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...
    def shown(self) -> list[str]:
        """The change as lines for a terminal."""
        ...

    def as_json(self) -> dict[str, Any]:
        """The change as JSON values, without the whole text."""
        ...


@dataclass(frozen=True)
class Result:
    """What became of one mutant.

    Attributes:
        implementation: id of its checks, without the gate.
        entry: function that is changed.
        verdict: KILLED, EQUAL (no output of any call moved), FREEDOM (outputs moved within what the contract leaves free),
            SURVIVED, or NOT_RUN.
        gate: that refused it; reason: as what, in a word or two.
        detail: the verdict's own words, the freedom, or the argument why it is equal.
        calls: how many calls ran what is changed; moved: how many outputs of them were others than before.
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
        """Without the changed text."""
        shown = {key: value for key, value in vars(self).items() if key != "mutant"}
        return shown | self.mutant.as_json()


@dataclass
class Judged:
    """One implementation: results of its mutants, or why there are none.

    Attributes:
        not_run: why it cannot run here; refused: why it is red as it is; nothing: why there is nothing to change.
        problems: what else is wrong.
    """

    implementation: str
    results: list[Result] = field(default_factory=list)
    not_run: str = ""
    refused: str = ""
    nothing: str = ""
    problems: list[str] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results)


def reason_of(outcome: str, detail: str) -> str:
    """As what a gate refused, in a word or two."""
    if outcome != "fail":
        return outcome.replace("_", " ")
    for name, words in (_VALUES | _FAULTS).items():
        if re.search(words, detail):
            return name
    return "other"


def lines(judged: Judged) -> list[str]:
    """What a terminal shows of one implementation."""
    name = judged.implementation
    for why, head in (
        (judged.not_run, "not run: "),
        (judged.refused, ""),
        (judged.nothing, "nothing to change: "),
    ):
        if why:
            return [f"{name}: {head}{why}"]
    found = [f"{name}: {summary(judged.results)}"]
    for result in judged.results:
        if result.verdict in (SURVIVED, NOT_RUN):
            mutant = result.mutant
            found.append(
                f"  {result.verdict}: {mutant.kind}, line {mutant.line} of {result.entry}: "
                + (
                    result.detail
                    or f"{result.moved:,} outputs of {result.calls} calls moved, all allowed"
                )
            )
            found += [f"    {line}" for line in mutant.shown()]
    return [*found, *(f"  problem: {problem}" for problem in judged.problems)]


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
    """1 where a mutant survived, a kernel was refused as it is, or there is a problem; 5 where one was not run, or nothing
    was changed."""
    if any(judged.refused or judged.problems or judged.count(SURVIVED) for judged in found):
        return 1
    asked = [judged for judged in found if not judged.nothing]
    ran = [judged for judged in asked if len(judged.results) > judged.count(NOT_RUN)]
    return 0 if asked and len(ran) == len(asked) else 5


def as_json(found: Sequence[Judged], seed: int, gates: Sequence[str]) -> dict[str, Any]:
    """The whole run as JSON values."""
    results = [result for judged in found for result in judged.results]
    return {
        "seed": seed,
        "effort": EFFORT,
        "gates": list(gates),
        "exit_code": exit_code(found),
        "counts": dict(Counter(result.verdict for result in results)),
        "not_run": {j.implementation: j.not_run for j in found if j.not_run},
        "refused": {j.implementation: j.refused for j in found if j.refused},
        "nothing": {j.implementation: j.nothing for j in found if j.nothing},
        "problems": {j.implementation: j.problems for j in found if j.problems},
        "mutants": [result.as_json() for result in results],
    }
