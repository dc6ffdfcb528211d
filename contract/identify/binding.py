"""How a black box is called: which of a contract's operands and scalars goes to which of its arguments.

By name where a name is the same; what is left by position, in the contract's order. A required argument that no operand
fills is guessed from the sizes, and the guesses are tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.case import Kernel
from contract.identify.target import GUESSES, guesses


@dataclass(frozen=True)
class Binding:
    """One way to call it; values are expressions (contract.identify.expressions).

    Attributes:
        positional, keywords: arguments of the call.
        constructor: arguments of the class, where it is one.
        state: parameter of the module -> operand.
        fixed: scalars of the contract that it does not take.
        by_position: arguments that took an operand by position.
        guessed: arguments that nobody gave.
    """

    positional: tuple[str, ...] = ()
    keywords: Mapping[str, str] = field(default_factory=dict)
    constructor: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    by_position: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What the worker needs."""
        return {
            "positional": list(self.positional),
            "keywords": dict(self.keywords),
            "constructor": dict(self.constructor),
            "state": dict(self.state),
        }

    def words(self) -> str:
        """How it is bound, in a line."""
        said = list(self.positional)
        for name, text in self.keywords.items():
            how = " (by position)" if name in self.by_position else ""
            how = " (guessed from the sizes)" if name in self.guessed else how
            said.append(f"{name}={text}{how}")
        parts = [f"called with {', '.join(said) or 'nothing'}"]
        if self.constructor:
            parts.append(f"built with {', '.join(f'{n}={t}' for n, t in self.constructor.items())}")
        if self.state:
            parts.append(f"its {', '.join(self.state)} from the operand of that name")
        if self.fixed:
            parts.append(f"takes no {', '.join(self.fixed)}")
        return "; ".join(parts)


def candidates(
    kernel: Kernel, facts: Mapping[str, Any], given: Mapping[str, str], sizes: Mapping[str, int]
) -> tuple[list[Binding], str]:
    """The ways to call it that are worth trying, best first; or none, and why.

    Args:
        facts: what the black box said of itself (contract.identify.target.describe).
        given: argument -> expression, of the command line.
        sizes: dims of the case that it is tried on.
    """
    if facts["unbound"]:
        return [], f"its {', '.join(facts['unbound'])} is no operand"
    operands = [o.name for o in kernel.inputs() if o.name not in facts["state"].values()]
    scalars = [s.name for s in kernel.contract.scalars if s.name not in facts["constructor"]]
    base: dict[str, Any] = {"constructor": facts["constructor"], "state": facts["state"]}
    if facts["parameters"] is None:
        return _unnamed(operands, scalars, given, base), ""
    return _named(kernel, facts["parameters"], operands, scalars, given, sizes, base)


def absent(kernel: Kernel) -> list[str]:
    """Operands of the contract that this kernel does not read: what takes one of their names is no kernel of these."""
    own = {o.name for o in (*kernel.inputs(), *kernel.outputs())}
    return [o.name for o in kernel.contract.operands if o.name not in own]


def _unnamed(
    operands: list[str], scalars: list[str], given: Mapping[str, str], base: Mapping[str, Any]
) -> list[Binding]:
    """Of a callable that does not say what it takes: operands by position, scalars by name or not at all."""
    own = {name: text for name, text in given.items() if name not in base["constructor"]}
    left = tuple(name for name in operands if name not in own.values())
    wanted = [name for name in scalars if name not in own]
    named = Binding(positional=left, keywords={**{s: s for s in wanted}, **own}, **base)
    if not wanted:
        return [named]
    return [named, Binding(positional=left, keywords=own, fixed=tuple(wanted), **base)]


def _named(
    kernel: Kernel,
    parameters: list[dict[str, Any]],
    operands: list[str],
    scalars: list[str],
    given: Mapping[str, str],
    sizes: Mapping[str, int],
    base: Mapping[str, Any],
) -> tuple[list[Binding], str]:
    real = [p for p in parameters if not p["kind"].startswith("VAR_")]
    others = [p["name"] for p in real if p["name"] in absent(kernel) and p["name"] not in given]
    if needing := [p["name"] for p in real if p["required"] and p["name"] in others]:
        return [], f"its `{needing[0]}` is no operand here"
    real = [p for p in real if p["name"] not in others]
    opened = any(p["kind"] == "VAR_POSITIONAL" for p in parameters)
    known = {*operands, *scalars, *kernel.parameters}
    bound = {
        p["name"]: given.get(p["name"], p["name"])
        for p in real
        if p["name"] in given or p["name"] in known
    }
    left = [name for name in operands if name not in bound.values()]
    free = [p for p in real if p["name"] not in bound and p["kind"] != "KEYWORD_ONLY"]
    # an argument with a default takes an operand only where those without one do not suffice
    needed = [p for p in free if p["required"]]
    places = [p["name"] for p in (needed if len(needed) >= len(left) else free)][: len(left)]
    if len(places) < len(left) and not opened:
        return [], f"takes no {', '.join(left[len(places) :])}"
    by_position = dict(zip(places, left, strict=False))
    bound |= by_position
    rest = [p["name"] for p in real if p["required"] and p["name"] not in bound]
    fixed = tuple(name for name in scalars if name not in bound.values())
    found = [
        _binding(real, {**bound, **guess}, by_position, guess, fixed, base, left[len(places) :])
        for guess in _guesses(rest, sizes, known)
    ]
    if not found:
        return [], f"nothing is known of its {', '.join(rest)}; give --arg {rest[0]}=VALUE"
    return found, ""


def _guesses(
    rest: list[str], sizes: Mapping[str, int], hidden: set[str]
) -> Iterator[dict[str, str]]:
    tried = list(guesses(sizes, hidden))
    for choice in itertools.islice(itertools.product(tried, repeat=len(rest)), GUESSES):
        yield dict(zip(rest, choice, strict=True))


def _binding(
    real: list[dict[str, Any]],
    bound: Mapping[str, str],
    by_position: Mapping[str, str],
    guess: Mapping[str, str],
    fixed: tuple[str, ...],
    base: Mapping[str, Any],
    more: list[str],
) -> Binding:
    """Arguments that cannot go by name go by position; so do all before an open list of them."""
    unnamed = [p["name"] for p in real if p["kind"] == "POSITIONAL_ONLY" and p["name"] in bound]
    if more:
        unnamed = [p["name"] for p in real if p["kind"] != "KEYWORD_ONLY" and p["name"] in bound]
    return Binding(
        positional=(*(bound[name] for name in unnamed), *more),
        keywords={
            p["name"]: bound[p["name"]]
            for p in real
            if p["name"] in bound and p["name"] not in unnamed
        },
        fixed=fixed,
        by_position=tuple(by_position),
        guessed=tuple(guess),
        **base,
    )
