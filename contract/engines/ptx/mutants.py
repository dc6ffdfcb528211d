"""Mutants of PTX: the same text with one instruction changed, a kernel that a judge must refuse."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from contract.engines.ptx.faults import Malformed, Unsupported
from contract.engines.ptx.mutations import Known, Written, changed, results, written
from contract.engines.ptx.program import decode
from contract.engines.ptx.syntax import Function, RegisterDeclared, Statement
from contract.engines.ptx.text import parse
from contract.turns import in_turn


@dataclass(frozen=True)
class Mutant:
    """One changed instruction.

    Attributes:
        line: of the instruction, the first line is 1.
        kind: what was changed, in words.
        before, after: the instruction, and what stands in its place.
        text: the whole PTX with it.
    """

    line: int
    kind: str
    before: str
    after: str
    text: str

    def shown(self) -> list[str]:
        """The change as lines for a terminal."""
        return [f"- {self.before}", f"+ {self.after}"]

    def as_json(self) -> dict[str, Any]:
        """Without the text of the PTX."""
        return {key: value for key, value in vars(self).items() if key != "text"}


@dataclass(frozen=True)
class _Candidate:
    kind: str
    line: int
    before: str
    after: str
    span: tuple[int, int]


def mutants(text: str, entry: str, count: int | None = None, seed: int = 0) -> list[Mutant]:
    """Mutants of an entry that the executor takes, spread over the kinds of change and the lines; `count` at most.

    Raises:
        Malformed, Unsupported: the text itself is not one that the executor takes.
    """
    decode(parse(text), entry)
    found: list[Mutant] = []
    candidates = list(_candidates(text, entry))
    # the text itself names files of the machine
    rng = random.Random(f"{seed} {[one.before for one in candidates]}")
    for one in in_turn(candidates, rng):
        if count is not None and len(found) >= count:
            break
        start, end = one.span
        mutated = text[:start] + one.after + text[end:]
        try:
            decode(parse(mutated), entry)
        except (Malformed, Unsupported):
            continue
        found.append(Mutant(one.line, one.kind, one.before, one.after, mutated))
    return found


def _candidates(text: str, entry: str) -> Iterator[_Candidate]:
    function = parse(text).entries[entry]
    lines = _starts(text)
    body = [part for part in function.body or () if isinstance(part, Statement)]
    parts = [written(statement) for statement in body]
    known = Known(_types(function, body), _single([one for one in parts if one]))
    for statement, one in zip(body, parts, strict=True):
        if one is None:
            continue
        span = _span(text, lines, statement)
        if span is not None:
            for kind, after in changed(one, known):
                yield _Candidate(kind, statement.line, statement.text + ";", after, span)
        known.note(one)


def _starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _span(text: str, lines: list[int], statement: Statement) -> tuple[int, int] | None:
    """Where a statement stands; None where its line does not tell."""
    start = lines[statement.line - 1]
    pattern = re.compile(r"\s+".join(map(re.escape, statement.text.split(" "))) + r"\s*;")
    end = lines[statement.line] if statement.line < len(lines) else len(text)
    found = [m.span() for m in pattern.finditer(text, start) if m.start() < end][:2]
    return found[0] if len(found) == 1 or (found and found[0][0] < end <= found[1][0]) else None


def _types(function: Function, body: list[Statement]) -> dict[str, str]:
    """Register -> the bits of its type: .f32 and .b32 hold one another's values."""
    found = {}
    for statement in body:
        for name in re.findall(r"%[A-Za-z_$]+\d+", statement.text):
            if name in found:
                continue
            known = statement.scope.find(name)
            if known and isinstance(known[1], RegisterDeclared):
                found[name] = re.sub(r"^[usf](?=\d)", "b", known[1].type)
    return found


def _single(parts: list[Written]) -> set[str]:
    counts = Counter(name for one in parts for name in results(one))
    return {name for name, count in counts.items() if count == 1}


__all__ = ["Mutant", "mutants"]
