"""Contract code for what was identified: an implementation that `contract run` takes, with a contract of its own where
the explanation is no declared profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.case import Kernel
from contract.declare import Profile
from contract.identify.binding import Binding
from contract.identify.expressions import rewritten
from contract.identify.found import Found
from contract.identify.hypotheses import FOUND, Hypothesis


def code(found: Found, target: str, engine: str = "host") -> str:
    """Python source; empty where nothing is explained, or where no profile states it: its points are not every step."""
    if not found.explained or found.best is None or found.binding is None:
        return ""
    if found.best.hypothesis.every:
        return ""
    hypothesis, binding = found.best.hypothesis, found.binding
    contract = hypothesis.kernel.contract
    own = not hypothesis.declared or bool(hypothesis.scalars)
    kernel, profile = contract.name, hypothesis.base.name
    lines = ["import contract"]
    body: list[str] = []
    if own:
        kernel, profile = f"{contract.name}_{FOUND}", FOUND if hypothesis.changes else profile
        lines = ["from dataclasses import replace", "", *lines]
        lines += _needs(hypothesis)
        body = _contract(hypothesis, kernel, profile)
    imported, name = _imported(target)
    lines += [imported]
    if binding.state:
        lines.insert(lines.index("import contract"), "import torch")
    stated = "".join(f", {key}={value!r}" for key, value in hypothesis.kernel.parameters.items())
    runs = f', engine="{engine}"' if engine != "host" else ""
    lines += ["", "", *body]
    if found.refused:
        lines += [
            f"# {found.refused:,} of {found.compared:,} outputs were refused: `contract run` of this is red where they are met"
        ]
    lines += [
        f'@contract.implementation("{kernel}", profile="{profile}", name="{_label(target)}"{runs}{stated})',
        f"def {_function(name)}({_arguments(hypothesis.kernel)}):",
        *(f"    {line}" for line in _call(hypothesis.kernel, binding, name)),
    ]
    return "\n".join(lines) + "\n"


def _needs(hypothesis: Hypothesis) -> list[str]:
    return ["from contract.orders import Tree"] if hypothesis.kernel.profile.orders else []


def _contract(hypothesis: Hypothesis, kernel: str, profile: str) -> list[str]:
    contract = hypothesis.kernel.contract
    scalars = [
        contract_scalar(
            s.name, (hypothesis.scalars[s.name],) if s.name in hypothesis.scalars else s.values
        )
        for s in contract.scalars
    ]
    changed = f"    scalars=({', '.join(scalars)},),\n" if hypothesis.scalars else ""
    text = (
        f"contract.register(replace(\n"
        f'    contract.registry.get("{contract.name}"),\n'
        f'    name="{kernel}",\n'
        f"{changed}"
        f"    profiles=({_profile(hypothesis, profile)},),\n"
        f"))\n\n"
    )
    return text.split("\n")


def contract_scalar(name: str, values: tuple[float, ...]) -> str:
    return f'contract.Scalar("{name}", {values!r})'


def _profile(hypothesis: Hypothesis, name: str) -> str:
    p: Profile = hypothesis.kernel.profile
    parts = [f'"{name}"', repr(dict(p.points))]
    options = {key: hypothesis.options[key] for key in p.options}
    tables: dict[str, Mapping[str, Any]] = {
        "formats": p.formats, "options": options, "overflow": p.overflow, "modes": p.modes, "orders": p.orders,
    }  # fmt: skip
    parts += [f"{key}={dict(table)!r}" for key, table in tables.items() if table]
    if hypothesis.kernel.parameters:
        when = {key: (value,) for key, value in hypothesis.kernel.parameters.items()}
        parts.append(f"when={when!r}")
    if p.keeps_subnormals:
        parts.append("keeps_subnormals=True")
    return f"contract.Profile({', '.join(parts)})"


def _imported(target: str) -> tuple[str, str]:
    """The line that imports it, and its name."""
    if target.endswith(".onnx"):
        return (
            f"from contract.identify.onnx_model import OnnxModel\n\nblack_box = OnnxModel({target!r})",
            "black_box",
        )
    place, _, name = target.rpartition(":")
    module = Path(place).stem if place.endswith(".py") else place
    first, _, rest = name.partition(".")
    return f"from {module} import {first}", f"{first}.{rest}" if rest else first


def _label(target: str) -> str:
    place, _, name = target.rpartition(":")
    root = (
        Path(place or target).stem
        if (place or target).endswith((".py", ".onnx"))
        else place.split(".")[0]
    )
    return re.sub(r"[^A-Za-z0-9_.]", "_", f"{root}.{name}" if name and place else root)


def _function(name: str) -> str:
    own = re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", name.rpartition(".")[2]).lower()
    return f"run_{own}" if own == name else own


def _arguments(kernel: Kernel) -> str:
    names = [*(o.name for o in kernel.inputs()), *(s.name for s in kernel.contract.scalars)]
    return ", ".join(names)


def _call(kernel: Kernel, binding: Binding, name: str) -> list[str]:
    def shown(word: str) -> str:
        known = {*(o.name for o in kernel.inputs()), *(s.name for s in kernel.contract.scalars)}
        if word in known:
            return word
        if word in kernel.parameters:
            return repr(kernel.parameters[word])
        for operand in kernel.inputs():
            if word in operand.dims:
                return f"{operand.name}.shape[{operand.dims.index(word)}]"
        return word if word in ("True", "False", "None") else repr(word)

    def arguments(given: Mapping[str, str], before: tuple[str, ...] = ()) -> str:
        parts = [rewritten(text, shown) for text in before]
        parts += [f"{key}={rewritten(text, shown)}" for key, text in given.items()]
        return ", ".join(parts)

    call = arguments(binding.keywords, binding.positional)
    if not (binding.constructor or binding.state):
        return [f"return {name}({call})"]
    lines = [f"module = {name}({arguments(binding.constructor)})"]
    lines += [
        f"module.{leaf} = torch.nn.Parameter({operand}, requires_grad=False)"
        for leaf, operand in binding.state.items()
    ]
    return [*lines, f"return module({call}).detach()"]
