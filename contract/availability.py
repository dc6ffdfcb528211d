"""Whether what an implementation requires is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


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
