"""Which checks a command line means.

    rms_norm                         every check of that contract, under all its parameters
    rms_norm,gain=1+w                of that one set of parameters
    rms_norm/two_step                every check whose id starts with these parts
    rms_norm/two_step/torch/stress   that check
    mine.py, contracts/              what the file or the files of the folder registered
    -k "torch and not (stress or red)"   pytest's grammar, over ids and keywords, case ignored

A name that means nothing is a mistake and refused; a filter that leaves nothing is not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from contract.engines import HOST
from contract.errors import UsageError
from contract.suggest import suggest

if TYPE_CHECKING:
    from contract.suites import Registered, Target

GATES = ("reference", "shapes", "stress", "exact", "invariance", "bounds", "limits")


class Check(Protocol):
    """What selection reads of a check (contract.runner.Check)."""

    @property
    def id(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def profile(self) -> str: ...
    @property
    def implementation(self) -> str | None: ...
    @property
    def engine(self) -> str: ...
    @property
    def gate(self) -> str | None: ...
    @property
    def control(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def requires(self) -> tuple[str, ...]: ...
    @property
    def keywords(self) -> Collection[str]: ...


C = TypeVar("C", bound=Check)
Place = tuple[str, str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Selection:
    """The filters of a command line; an empty one lets everything through."""

    names: tuple[str, ...] = ()
    keyword: str = ""
    impls: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()


def select(
    checks: Sequence[C], selection: Selection, chosen: Mapping[str, Registered] | None = None
) -> list[C]:
    """The checks that the selection means, in their order.

    Args:
        checks: all checks there are.
        selection: names and filters.
        chosen: names that are files -> what they registered (contract.suites.Loaded.chosen); all of it is meant,
            unless an id stands beside them.

    Raises:
        UsageError: a name, implementation or engine that no check has; a `-k` that does not parse.
    """
    matches = parse_keyword(selection.keyword)
    _refuse_unknown("implementation", selection.impls, _names(checks))
    _refuse_unknown("engine", selection.engines, {c.engine for c in checks if c.implementation})
    planted = {
        _place(check)
        for check in checks
        if check.engine != HOST and _is_own(check, selection.impls)
    }
    kept = [check for check in checks if matches(check) and _passes(check, selection, planted)]
    if not selection.names:
        return kept
    files = chosen or {}
    ids = [name for name in selection.names if name not in files and "/" in name]
    named: set[str] = set()
    for name in selection.names:
        if name in files and ids:
            # with an id beside it, a file only says where that is declared
            continue
        named |= _named(name, checks, (chosen or {}).get(name))
    return [check for check in kept if check.id in named]


def refuse_absent(name: str) -> None:
    """Refuse what can only be a file or folder, and is not there: told before anything is loaded.

    Raises:
        UsageError: a .py file, or a folder that is written as one, that does not exist.
    """
    path = Path(name)
    # with a slash inside it may be the start of an id: rms_norm/once/
    folder = name.endswith("/") and ("/" not in name[:-1] or name[0] in "./~")
    if path.exists() or not (name.endswith(".py") or folder):
        return
    kind = "folder" if folder else "file"
    others = [p.name for p in path.parent.glob("*") if p.is_dir() == folder]
    near = difflib.get_close_matches(path.name, sorted(others), 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else f" (from {Path.cwd()})"
    raise UsageError(f"{name}: no such {kind}{hint}")


def unregistered(required: Iterable[str], checks: Sequence[C]) -> list[str]:
    """The required names that no implementation or engine has: they can only fail to run."""
    known = _names(checks) | {c.engine for c in checks if c.implementation}
    return [name for name in dict.fromkeys(required) if name not in known]


def _names(checks: Sequence[Check]) -> set[str]:
    names = {check.implementation for check in checks if check.implementation}
    return names | {f"{c.implementation}+{c.engine}" for c in checks if c.implementation}


def _passes(check: Check, selection: Selection, planted: Collection[Place]) -> bool:
    gate = "reference" if check.kind == "reference" else check.gate
    return (
        (not selection.gates or gate in selection.gates)
        and (
            not selection.impls
            or _is_own(check, selection.impls)
            or (check.kind == "control" and _place(check) in planted)
        )
        and (not selection.engines or _on_engine(check, selection.engines))
    )


def _is_own(check: Check, names: Collection[str]) -> bool:
    return check.implementation in names or f"{check.implementation}+{check.engine}" in names


def _place(check: Check) -> Place:
    """What an implementation of GPU code has in common with the kernels that are planted for it."""
    return check.kernel, check.profile, check.engine, check.requires


def _on_engine(check: Check, engines: Sequence[str]) -> bool:
    """Whether it runs on one of these engines: an implementation, or a kernel planted for another engine than the host,
    whose controls belong to the contract."""
    return check.engine in engines and (check.implementation is not None or check.engine != HOST)


def _refuse_unknown(kind: str, asked: Iterable[str], known: set[str]) -> None:
    for name in asked:
        if name not in known:
            raise UsageError(f"no {kind} {name!r}; {suggest(name, known)}")


def _named(name: str, checks: Sequence[Check], registered: Registered | None) -> set[str]:
    """Ids of the checks that one name means; at least one."""
    if registered is not None:
        ids = {check.id for check in checks if _belongs(check, registered)}
        if not ids:
            raise UsageError(
                f"{name}: the file registers nothing to judge; declare a contract, or"
                " decorate a function with @contract.implementation(KERNEL)"
            )
        return ids
    prefix = name.rstrip("/")
    ids = {c.id for c in checks if c.id == prefix or c.id.startswith(prefix + "/")}
    if "/" not in prefix:
        ids |= {check.id for check in checks if check.kernel.split(",")[0] == prefix}
    if not ids:
        # a folder that a kernel's name hides is there
        neither = "" if Path(name).exists() else ", and no file or folder of that name"
        raise UsageError(
            f"no check {name!r}{neither}; {suggest(prefix, _prefixes(prefix, checks))}"
        )
    return ids


def _prefixes(prefix: str, checks: Sequence[Check]) -> set[str]:
    """Names with as many parts as the one that was not found."""
    parts = prefix.count("/") + 1
    names = {"/".join(check.id.split("/")[:parts]) for check in checks}
    return names | {check.kernel.split(",")[0] for check in checks} if parts == 1 else names


def _belongs(check: Check, registered: Registered) -> bool:
    """Whether the file registered the check's contract, implementation or control.

    With an implementation comes the reference that it is judged by: a kernel passes when both do.
    """
    kernel = check.kernel.split(",")[0]
    if kernel in registered.contracts:
        return True
    if check.kind == "reference":
        return any(_meets(check, target) for target in registered.implementations)
    targets = registered.implementations if check.control is None else registered.controls
    name = check.implementation if check.control is None else check.control
    return any(target.name == name and _meets(check, target) for target in targets)


def _meets(check: Check, target: Target) -> bool:
    """Whether the check is of the target's kernel and profile, under parameters that it serves."""
    from contract import registry
    from contract.declare import served

    kernel, *given = check.kernel.split(",")
    if kernel != target.kernel:
        return False
    contract = registry.get(kernel)
    values = contract.full_parameters(dict(part.split("=", 1) for part in given))
    profile = target.profile or contract.profiles[0].name
    return profile == check.profile and served(dict(target.parameters), values)


_TOKEN = re.compile(r"\s*(?:([()])|([\w:+\-.\[\]\\/=,]+))")


def parse_keyword(expression: str) -> Callable[[Check], bool]:
    """The predicate that a `-k` expression states: words, and, or, not, parentheses.

    A word matches where it is part of the id or of a keyword, case ignored. The empty expression
    matches everything.

    Raises:
        UsageError: an expression that is none; the message shows the column.
    """
    if not expression.strip():
        return lambda check: True
    parser = _Parser(expression)
    result = parser.either()
    parser.expect_end()
    return result


class _Parser:
    """Descent: or := and ('or' and)*; and := not ('and' not)*; not := 'not' not | word."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens: list[tuple[int, str]] = []
        position = 0
        while expression[position:].strip():
            match = _TOKEN.match(expression, position)
            if match is None:
                column = len(expression) - len(expression[position:].lstrip()) + 1
                raise UsageError(
                    f"-k {expression!r}: unexpected {expression[column - 1]!r} at column {column}"
                )
            word = match.group(1) or match.group(2)
            self.tokens.append((match.end() - len(word) + 1, word))
            position = match.end()
        self.tokens.append((len(expression) + 1, ""))

    def accept(self, word: str) -> bool:
        if self.tokens[0][1] != word:
            return False
        self.tokens.pop(0)
        return True

    def fail(self, wanted: str) -> UsageError:
        column, word = self.tokens[0]
        found = repr(word) if word else "the end"
        return UsageError(
            f"-k {self.expression!r}: expected {wanted} at column {column}, got {found}"
        )

    def expect_end(self) -> None:
        if self.tokens[0][1]:
            raise self.fail("'and', 'or' or the end")

    def either(self) -> Callable[[Check], bool]:
        parts = [self.both()]
        while self.accept("or"):
            parts.append(self.both())
        return lambda check: any(part(check) for part in parts)

    def both(self) -> Callable[[Check], bool]:
        parts = [self.negation()]
        while self.accept("and"):
            parts.append(self.negation())
        return lambda check: all(part(check) for part in parts)

    def negation(self) -> Callable[[Check], bool]:
        if self.accept("not"):
            inner = self.negation()
            return lambda check: not inner(check)
        if self.accept("("):
            inner = self.either()
            if not self.accept(")"):
                raise self.fail("')'")
            return inner
        word = self.tokens[0][1]
        if word in ("", ")", "and", "or"):
            raise self.fail("a word")
        self.tokens.pop(0)
        needle = word.lower()
        return lambda check: any(needle in text.lower() for text in (check.id, *check.keywords))
