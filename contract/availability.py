"""Whether what an implementation requires is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence

from contract.engines import HOST

#: What is required and no package: a compiler.
NVCC = "nvcc"
TRITON = "triton"
# Triton and the engines of GPU code, with what each process would otherwise load and compute for itself.
_TRITON_READY = "contract.engines.triton_ready"


def modules(requires: Sequence[str], engine: str) -> tuple[str, ...]:
    """What a worker imports: those of what is required that can be imported, and what goes with them; Triton first.

    Launches of CUDA C++ are captured together with Triton's, where it is installed.
    """
    found = {name for name in requires if name not in (NVCC, TRITON)}
    if TRITON in requires or (engine != HOST and importlib.util.find_spec(TRITON) is not None):
        # first, so that what needs more than Triton begins like what needs Triton alone
        return (_TRITON_READY, *sorted(found))
    return tuple(sorted(found))


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
