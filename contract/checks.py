"""Checks: what a run is made of, collected from the registry in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from contract import autocontrols, registry
from contract.case import Kernel, kernels_of
from contract.declare import Control, Implementation, served
from contract.gates import GATES

DEFAULT_ENGINE = "host"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: see contract.results.CheckResult.
        kernel: contract name with its non-default parameters; profile; spec: what finds the kernel again.
        kind: 'reference', 'gate' or 'control'.
        target: 'implementation', 'control' or 'auto'; name: its name there.
        gates: for a control the gates that may catch it.
        keywords: words that -k matches.
        module: the module whose source the result depends on.
    """

    id: str
    kernel: str
    profile: str
    spec: dict[str, Any]
    kind: str
    implementation: str | None = None
    engine: str = DEFAULT_ENGINE
    gate: str | None = None
    control: str | None = None
    target: str = ""
    name: str = ""
    colour: str = ""
    gates: tuple[str, ...] = ()
    expect: str = ""
    requires: tuple[str, ...] = ()
    module: str = ""
    keywords: frozenset[str] = field(default_factory=frozenset)
    required: bool = False

    def as_json(self) -> dict[str, Any]:
        """What the judge process needs."""
        # no deep copy: it is written at once, thousands of times a run
        return {**vars(self), "keywords": sorted(self.keywords)}


def collect_checks(*, automatic: bool = True) -> list[Check]:
    """Every check of the registry: kernels by name, their reference, implementations, controls.

    `automatic`: also the automatic controls, for whose names every reference is read once.
    """
    found: list[Check] = []
    for contract in registry.contracts().values():
        implementations = registry.implementations(contract.name)
        controls = registry.controls(contract.name)
        for kernel in kernels_of(contract):
            found += _of_kernel(kernel, implementations, controls, automatic)
    return found


def _of_kernel(
    kernel: Kernel,
    implementations: list[Implementation],
    controls: list[Control],
    automatic: bool,
) -> list[Check]:
    spec = {
        "name": kernel.contract.name,
        "profile": kernel.profile.name,
        "parameters": dict(kernel.parameters),
    }
    base: dict[str, Any] = {"kernel": kernel.name, "profile": kernel.profile.name, "spec": spec}
    words = {kernel.contract.name, kernel.contract.family, kernel.profile.name, kernel.name}
    found = [
        Check(
            id=f"{kernel.id}/reference",
            kind="reference",
            gate="reference",
            module=kernel.contract.reference.__module__,
            keywords=frozenset(words | {"reference"}),
            **base,
        )
    ]
    for item in implementations:
        if item.profile != kernel.profile.name or not served(item.parameters, kernel.parameters):
            continue
        name = item.name if item.engine == DEFAULT_ENGINE else f"{item.name}+{item.engine}"
        for gate in GATES:
            found.append(
                Check(
                    id=f"{kernel.id}/{name}/{gate}",
                    kind="gate",
                    implementation=item.name,
                    engine=item.engine,
                    gate=gate,
                    target="implementation",
                    name=item.name,
                    requires=item.requires,
                    module=item.module,
                    keywords=frozenset(words | {item.name, gate, item.engine}),
                    **base,
                )
            )
    for control in controls:
        if control.profile != kernel.profile.name or not served(
            control.parameters, kernel.parameters
        ):
            continue
        name = f"{control.colour}.{control.name}"
        found.append(
            Check(
                id=f"{kernel.id}/{name}",
                kind="control",
                control=name,
                target="control",
                name=name,
                colour=control.colour,
                gates=control.gates,
                expect=control.expect,
                requires=control.requires,
                module=control.module,
                keywords=frozenset(
                    words | {control.name, control.colour, "control", *control.gates}
                ),
                **base,
            )
        )
    for auto in autocontrols.automatic(kernel) if automatic else ():
        name = f"{auto.colour}.{auto.name}"
        gates = () if auto.colour == "green" else autocontrols.ANY_GATE
        found.append(
            Check(
                id=f"{kernel.id}/{name}",
                kind="control",
                control=name,
                target="auto",
                name=name,
                colour=auto.colour,
                gates=gates,
                module=kernel.contract.reference.__module__,
                keywords=frozenset(words | {auto.name, auto.colour, "control", auto.kind}),
                **base,
            )
        )
    return found
