"""Checks: what a run is made of, collected from the registry in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from contract import autocontrols, registry
from contract.case import Kernel, kernels_of
from contract.declare import Control, Implementation, served
from contract.engines import GPU, HOST, PTX
from contract.engines.devices import has_driver
from contract.gates import GATES


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
    engine: str = HOST
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


def names_gpu(name: str) -> bool:
    """Whether a name of an engine or implementation, or an id, asks for the GPU: `gpu`, `triton+gpu`, `.../triton+gpu/exact`."""
    return name == GPU or any(part.endswith(f"+{GPU}") for part in name.split("/"))


def collect_checks(*, automatic: bool = True, asked: Iterable[str] = ()) -> list[Check]:
    """Every check of the registry: kernels by name, their reference, implementations, controls.

    Args:
        automatic: also the automatic controls, for whose names every reference is read once.
        asked: names that a user or project asks for. GPU kernels are judged on the GPU, too, where a driver is loaded, or
            one of these says so.
    """
    gpu = has_driver() or any(map(names_gpu, asked))
    found: list[Check] = []
    for contract in registry.contracts().values():
        implementations = registry.implementations(contract.name)
        controls = registry.controls(contract.name)
        for kernel in kernels_of(contract):
            found += _of_kernel(kernel, implementations, controls, automatic, gpu)
    return found


def _of_kernel(
    kernel: Kernel,
    implementations: list[Implementation],
    controls: list[Control],
    automatic: bool,
    gpu: bool,
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
        runs = {item.engine: item.label}
        if gpu and item.engine == PTX:
            runs[GPU] = f"{item.name}+{GPU}"
        for (engine, label), gate in itertools.product(runs.items(), GATES):
            found.append(
                Check(
                    id=f"{kernel.id}/{label}/{gate}",
                    kind="gate",
                    implementation=item.name,
                    engine=engine,
                    gate=gate,
                    target="implementation",
                    name=item.label,
                    requires=item.requires,
                    module=item.module,
                    keywords=frozenset(words | {item.name, gate, engine}),
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
                engine=control.engine,
                target="control",
                name=name,
                colour=control.colour,
                gates=control.gates,
                expect=control.expect,
                requires=control.requires,
                module=control.module,
                keywords=frozenset(
                    words
                    | {control.name, control.colour, "control", control.engine, *control.gates}
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
