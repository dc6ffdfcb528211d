"""Where a check's kernel is declared, and what is declared of it: for reports, which are read without the suite."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract import registry
from contract.case import Kernel, kernels_of
from contract.results import CheckResult


@dataclass(frozen=True)
class KernelFacts:
    """What a contract says of one kernel.

    Attributes:
        summary, family, users: of the contract and the profile, in words.
        points: rounding point -> its format, None where it is not rounded under this profile.
        freedoms: freedom -> source of its bound.
        vacuous: point, option or parameter -> why nothing can show it.
        planted: control -> what is planted, as its docstring says.
    """

    summary: str = ""
    family: str = ""
    users: str = ""
    points: Mapping[str, str | None] = field(default_factory=dict)
    freedoms: Mapping[str, str] = field(default_factory=dict)
    vacuous: Mapping[str, str] = field(default_factory=dict)
    planted: Mapping[str, str] = field(default_factory=dict)


def facts(checks: Iterable[CheckResult]) -> dict[tuple[str, str], KernelFacts]:
    """(kernel, profile) -> what the loaded suites declare of it; nothing for one that is not loaded."""
    found = {}
    for key in dict.fromkeys((check.kernel, check.profile) for check in checks):
        kernel = _kernel(*key)
        if kernel is not None:
            found[key] = _facts(kernel)
    return found


def _kernel(name: str, profile: str) -> Kernel | None:
    contract = registry.contracts().get(name.partition(",")[0])
    every = kernels_of(contract) if contract is not None else []
    return next((k for k in every if (k.name, k.profile.name) == (name, profile)), None)


def _facts(kernel: Kernel) -> KernelFacts:
    contract, profile = kernel.contract, kernel.profile
    return KernelFacts(
        contract.summary,
        contract.family,
        profile.users,
        dict(profile.points),
        dict(contract.freedoms),
        dict(profile.vacuous),
        {
            f"{item.colour}.{item.name}": " ".join((inspect.getdoc(item.call) or "").split())
            for item in registry.controls(contract.name)
            if item.profile == profile.name
        },
    )


def place_of(check: CheckResult) -> tuple[str, int] | None:
    """(file, line) of what a check judges: the implementation's or control's declaration, else the reference.

    The file is relative to the working folder where it lies below it.
    """
    name = check.kernel.partition(",")[0]
    contract = registry.contracts().get(name)
    if contract is None:
        return None
    named: Iterable[tuple[str, str, str]] = (
        *((i.profile, i.name, i.place) for i in registry.implementations(name)),
        *((c.profile, f"{c.colour}.{c.name}", c.place) for c in registry.controls(name)),
    )
    for profile, label, place in named:
        if place and (profile, label) == (check.profile, check.implementation or check.control):
            file, _, line = place.rpartition(":")
            return _short(file), int(line)
    code = getattr(inspect.unwrap(contract.reference), "__code__", None)
    return None if code is None else (_short(code.co_filename), code.co_firstlineno)


def _short(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_posix()
