"""Whether what an implementation requires is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from contract import registry


def packages(requires: Iterable[str]) -> tuple[str, ...]:
    """The top packages of required modules, each once."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in requires))


def missing_reason(requires: Iterable[str]) -> str:
    """'' or the named reason for which an implementation cannot run here.

    Only the top packages are looked for: whether one has a certain module, its import tells.
    """
    for name in packages(requires):
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            return f"{name} is not installed"
    return ""


def shared_imports(requires: Iterable[str]) -> tuple[str, ...]:
    """All modules of these packages that any implementation or control requires: one template serves them all."""
    wanted = set(packages(requires))
    named = [name for item in registry.implementations() for name in item.requires]
    named += [name for control in registry.controls() for name in control.requires]
    return tuple(sorted({name for name in named if name.partition(".")[0] in wanted}))
