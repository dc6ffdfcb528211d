"""Whether what an implementation requires is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

#: What is required and no package: a compiler.
NVCC = "nvcc"


def modules(requires: Iterable[str]) -> tuple[str, ...]:
    """Those of what is required that can be imported."""
    return tuple(name for name in requires if name != NVCC)


def packages(requires: Iterable[str]) -> tuple[str, ...]:
    """The top packages of required modules, each once."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in requires))


def missing_reason(requires: Iterable[str]) -> str:
    """'' or the named reason for which an implementation cannot run here.

    Only the top packages are looked for: whether one has a certain module, its import tells.
    """
    for name in packages(requires):
        if name == NVCC:
            from contract.engines import nvcc

            if missing := nvcc.missing_reason():
                return missing
            continue
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            return f"{name} is not installed"
    return ""
