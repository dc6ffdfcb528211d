"""The changes of an implementation's source: its own function and what it reaches in its suite, where lines of it ran."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from contract.mutation.applied import nested
from contract.mutation.edit import Edit, Source
from contract.mutation.noting import entries, same_numbers
from contract.mutation.operators import edits
from contract.turns import in_turn

#: What a constant of a module may be written of.
_NUMBERS = (
    ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.List, ast.Name, ast.Attribute,
    ast.expr_context,
)  # fmt: skip
#: Lines of the text around a change.
CONTEXT = 1


#: (path, start, end, text) of an edit.
Key = tuple[str, int, int, str]


@dataclass(frozen=True)
class Change:
    """One change of a file.

    Attributes:
        file: as the diff names it; path: where it lies.
        function: whose code is changed, '' where it is a constant of the module, which is then `name`.
        line, kind, before, after: of the edit, in whole lines.
        digest: of file, function and changed lines, whatever stands around them.
        value: the constant's new value as an expression.
        key: of its candidate.
        text: all of the file, changed.
    """

    file: str
    path: str
    function: str
    line: int
    kind: str
    before: str
    after: str
    diff: tuple[str, ...]
    digest: str
    text: str
    name: str = ""
    value: str = ""
    key: Key = ("", 0, 0, "")

    def shown(self) -> list[str]:
        """The unified diff."""
        return [*self.diff, f"(diff {self.digest})"]

    def as_json(self) -> dict[str, Any]:
        """Without the whole text, and where it lies."""
        names = ("file", "line", "kind", "before", "after", "digest")
        return {name: getattr(self, name) for name in names} | {"diff": list(self.diff)}


@dataclass(frozen=True)
class Candidate:
    """A change that may be made: what it edits, in which function or constant, and why it may compute the same."""

    kind: str
    line: int
    path: str
    function: str
    name: str
    edit: Edit
    # whose value is new, of a constant of the module
    whole: ast.expr | None = None
    argument: str = ""

    @property
    def key(self) -> Key:
        return self.path, self.edit.start, self.edit.end, self.edit.text


@dataclass(frozen=True)
class Ran:
    """What ran of a file: its lines, and what contract.mutation.noting.Notes holds as JSON."""

    lines: frozenset[int]
    arms: frozenset[int]
    keys: Mapping[str, list[str]]
    casts: Mapping[str, Mapping[str, list[str]]]


def candidates(ran: Mapping[str, Ran]) -> dict[Key, Candidate]:
    """Every change of what ran in one kernel. `ran`: path of a file -> what ran of it."""
    texts = {path: Path(path).read_text() for path in ran}
    return {c.key: c for path, one in ran.items() for c in _candidates(path, texts[path], one)}


def chosen(found: Iterable[Mapping[Key, Candidate]], seed: int, count: int | None) -> list[Change]:
    """Changes of what some kernels run, spread over the kinds and the lines; `count` at most, all where None."""
    every = {key: one for each in reversed(list(found)) for key, one in each.items()}
    ordered = [every[key] for key in sorted(every)]
    texts = {path: Path(path).read_text() for path in {one.path for one in ordered}}
    # not the paths, which are another machine's elsewhere
    rng = random.Random(f"{seed} {[(one.kind, one.function, one.edit.text) for one in ordered]}")
    result: dict[str, Change] = {}
    for one in in_turn(ordered, rng):
        if count is not None and len(result) >= count:
            break
        change = _change(one, texts[one.path])
        # two edits may give one text: `-1` by one, and without its sign
        if change is not None:
            result.setdefault(change.digest, change)
    return list(result.values())


def _candidates(path: str, text: str, ran: Ran) -> Iterator[Candidate]:
    if not ran.lines:
        return
    source = Source(text)
    used: set[str] = set()
    for name, function in _functions(source.tree, ""):
        if not _body(function) & ran.lines:
            continue
        used |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
        idle = list(_idle(source, function, ran))
        for edit in edits(source, function):
            if not _lines(source, edit) & ran.lines:
                continue
            if any(first <= edit.start and edit.end <= last for first, last in idle):
                continue
            notes = ran.casts.get(str(edit.cast))
            if edit.dtype and notes and notes["value"] == [edit.dtype]:
                # the same program as without the cast
                continue
            argument = same_numbers(notes, edit.dtype) if edit.cast >= 0 else ""
            yield Candidate(edit.kind, edit.line, path, name, "", edit, None, argument)
    for node in source.tree.body:
        target, value = _constant(node)
        if value is None or target not in used:
            continue
        for edit in edits(source, ast.Expression(value)):
            yield Candidate(edit.kind, edit.line, path, "", target, edit, value)


def _idle(source: Source, function: ast.AST, ran: Ran) -> Iterator[tuple[int, int]]:
    """The arms of conditional expressions, and the later operands of `and` and `or`, that never ran; the entries of tables
    written on the spot that nobody looked up."""
    for node in ast.walk(function):
        parts: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values[1:]
        for part in parts:
            if source.start(part) not in ran.arms:
                yield source.start(part), source.end(part)
        asked = ran.keys.get(str(source.start(node)), []) if isinstance(node, ast.expr) else []
        for key, part in entries(node).items():
            if key not in asked:
                yield source.start(part), source.end(part)


def _functions(node: ast.AST, above: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their names; those inside functions are part of these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield f"{above}{child.name}", child
        elif isinstance(child, ast.ClassDef | ast.If | ast.Try):
            inside = f"{above}{child.name}." if isinstance(child, ast.ClassDef) else above
            yield from _functions(child, inside)


def _body(function: ast.FunctionDef) -> set[int]:
    """Lines below the head: those of the head run when the function is made."""
    return set(range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1))


def _lines(source: Source, edit: Edit) -> set[int]:
    return set(range(edit.line, source.line_of(max(edit.start, edit.end - 1)) + 1))


def _constant(node: ast.stmt) -> tuple[str, ast.expr | None]:
    """Name and value of `NAME = numbers`; ('', None) of anything else."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    else:
        return "", None
    numbers = all(isinstance(one, _NUMBERS) for one in ast.walk(value))
    return (target.id, value) if isinstance(target, ast.Name) and numbers else ("", None)


def _change(one: Candidate, text: str) -> Change | None:
    """The changed file; None where it is no Python, or the same program."""
    changed = Source(text).applied(one.edit)
    try:
        old, new = _compiled(text), _compiled(changed)
    except SyntaxError:
        return None
    # what does not close over the same names cannot take the other's place
    if old == new or [c.co_freevars for c in old] != [c.co_freevars for c in new]:
        return None
    before, after = text.splitlines(), changed.splitlines()
    shown = _shown(one.path)
    diff = list(difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}", lineterm="", n=CONTEXT))  # fmt: skip
    removed = [line[1:] for line in diff[2:] if line.startswith("-")]
    added = [line[1:] for line in diff[2:] if line.startswith("+")]
    # one line may stand twice in a function
    again = before[: one.edit.line - 1].count(removed[0]) if removed else 0
    key = json.dumps([Path(one.path).name, one.function or one.name, removed, added, again])
    value = ""
    if one.whole is not None:
        source = Source(text)
        first, last = source.start(one.whole), source.end(one.whole)
        grown = len(changed.encode()) - len(source.data)
        value = changed.encode()[first : last + grown].decode()
    return Change(
        file=shown,
        path=one.path,
        function=one.function,
        line=one.line,
        kind=one.kind if one.function else f"{one.kind} of a module's constant",
        before="\n".join(line.strip() for line in removed),
        after="\n".join(line.strip() for line in added),
        diff=tuple(diff),
        digest=hashlib.sha256(key.encode()).hexdigest()[:16],
        text=changed,
        name=one.name,
        value=value,
        key=one.key,
    )


def _compiled(text: str) -> list[CodeType]:
    return list(nested(compile(text, "mutant", "exec")))


def _shown(path: str) -> str:
    """From the working folder where it lies below it, else its last two parts."""
    here = Path(path)
    if here.is_relative_to(Path.cwd()):
        return str(here.relative_to(Path.cwd()))
    return "/".join(here.parts[-2:])


__all__ = ["Candidate", "Change", "Key", "Ran", "candidates", "chosen"]
