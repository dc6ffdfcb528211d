"""What is registered: `contract list` and `contract show NAME`."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from contract import registry
from contract.availability import packages
from contract.declare import Contract, Operand, Profile, Scalar, Shape, scope
from contract.engines.placement import TORCH_TYPES
from contract.errors import UsageError
from contract.suggest import suggest

#: formats whose codes lie in a wider or an untyped tensor
CARRIED = ("int4", "uint4", "e2m1", "e8m0")


def facts() -> list[dict[str, Any]]:
    """One dictionary per contract, sorted by name: the JSON of `contract list`."""
    return [
        {
            "name": contract.name,
            "family": contract.family,
            "profiles": [profile.name for profile in contract.profiles],
            "parameters": {key: list(values) for key, values in contract.parameters.items()},
            "implementations": sorted({i.name for i in registry.implementations(contract.name)}),
            "planted_controls": {
                colour: sum(c.colour == colour for c in registry.controls(contract.name))
                for colour in ("red", "green")
            },
        }
        for contract in registry.contracts().values()
    ]


def list_json() -> str:
    """`contract list --json`."""
    return json.dumps(facts(), indent=1, sort_keys=True)


def list_lines() -> list[str]:
    """A line per contract, in columns; nothing is cut.

    The controls are the planted ones; a run adds those that it makes from the contract itself.
    """
    head = ("NAME", "FAMILY", "PROFILES", "PARAMETERS", "IMPLEMENTATIONS", "PLANTED CONTROLS")
    rows = [
        (
            fact["name"],
            fact["family"],
            " ".join(fact["profiles"]),
            " ".join(f"{key}={'|'.join(values)}" for key, values in fact["parameters"].items())
            or "-",
            " ".join(fact["implementations"]) or "none",
            f"{fact['planted_controls']['red']} red, {fact['planted_controls']['green']} green",
        )
        for fact in facts()
    ]
    return _columns([head, *rows])


def markdown_lines() -> list[str]:
    """The page of `contract list --markdown`: a table of kernels for each family, and what computes under each profile."""
    families: dict[str, list[Contract]] = {}
    for contract in registry.contracts().values():
        families.setdefault(contract.family, []).append(contract)
    count = f"{len(registry.contracts())} contracts in {len(families)} families"
    lines = [
        "# Kernels",
        "",
        f"{count}, written by `contract list --markdown`; `contract show NAME` says more.",
    ]
    for family, members in sorted(families.items()):
        lines += ["", f"## {family}"]
        for contract in sorted(members, key=lambda c: c.name):
            lines += ["", f"### {contract.name}", "", *_page(contract)]
    return lines


def _page(contract: Contract) -> Iterator[str]:
    yield f"{contract.summary or 'No summary'}."
    yield ""
    if contract.parameters:
        stated = "; ".join(f"`{k}`: {' | '.join(v)}" for k, v in contract.parameters.items())
        yield f"- parameters: {stated}"
    for profile in contract.profiles:
        rounded = [f"{p} {fmt}" for p, fmt in profile.points.items() if fmt]
        users = f"; {profile.users}" if profile.users else ""
        only = f"; {scope(profile)}" if scope(profile) else ""
        yield f"- profile `{profile.name}`: {', '.join(rounded) or 'nothing is rounded'}{users}{only}"
    names = sorted({i.name for i in registry.implementations(contract.name)})
    yield f"- implementations: {', '.join(names) or 'none'}"
    colours = [c.colour for c in registry.controls(contract.name)]
    yield f"- planted controls: {colours.count('red')} red, {colours.count('green')} green"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def show_lines(name: str) -> list[str]:
    """Everything that the contract of that name declares.

    Raises:
        UsageError: no such contract; the message names the nearest.
    """
    # an id is shown as its contract
    name = name.partition("/")[0].partition(",")[0]
    if name not in registry.contracts():
        hint = suggest(name, registry.contracts(), "contract list")
        raise UsageError(f"no contract {name!r}; {hint}")
    contract = registry.get(name)
    colon = ": " if contract.summary else ""
    lines = [f"{contract.name} ({contract.family}){colon}{contract.summary}"]
    for title, body in _sections(contract):
        if body:
            lines += ["", title, *(f"  {line}".rstrip() for line in body)]
    return lines


def _sections(contract: Contract) -> tuple[tuple[str, list[str]], ...]:
    return (
        ("operands", _columns([_operand(o) for o in contract.operands])),
        ("scalars", [_scalar(s) for s in contract.scalars]),
        (
            "parameters",
            [f"{k}: {' | '.join(v)} (default {v[0]})" for k, v in contract.parameters.items()],
        ),
        ("options", [f"{k}: {' | '.join(map(str, v))}" for k, v in contract.options.items()]),
        ("profiles", list(_profiles(contract.profiles))),
        ("freedoms", [f"{freedom}: {source}" for freedom, source in contract.freedoms.items()]),
        (
            "rows",
            [
                f"one per index of {', '.join(contract.row_dims) or 'nothing: all is one row'}"
                + (f"; rows share {contract.shares}" if contract.shares else "")
            ],
        ),
        ("shapes", list(_shapes(contract))),
        ("launches", [_launch(launch) for launch in contract.launches]),
        (
            "not applicable",
            [f"{gate}: {reason}" for gate, reason in contract.not_applicable.items()],
        ),
        (
            "null kernels that are right",
            [f"{k}: {reason}" for k, reason in contract.honest_nulls.items()],
        ),
        ("implementations", list(_implementations(contract.name))),
        ("planted controls", list(_controls(contract.name))),
        ("reference", (inspect.getdoc(contract.reference) or "no docstring").splitlines()),
    )


def _operand(operand: Operand) -> tuple[str, str, str, str, str]:
    notes = []
    if operand.stage:
        notes.append("stage: may be left out")
    if operand.observed:
        notes.append("what follows is judged from its bits")
    if operand.in_place_of:
        notes.append(f"may be written over {operand.in_place_of}")
    if operand.finite:
        notes.append("positive values only" if operand.positive else "finite values only")
    notes += [f"only when {key} is {' or '.join(values)}" for key, values in operand.when.items()]
    if operand.format in CARRIED:
        notes.insert(0, f"{TORCH_TYPES[operand.format]}, one code each")
    dims = f"({', '.join(operand.dims)})"
    return operand.name, operand.role, dims, operand.format, "; ".join(notes)


def _scalar(scalar: Scalar) -> str:
    return f"{scalar.name}: {', '.join(map(repr, scalar.values))} (default {scalar.default!r})"


def _profiles(profiles: Iterable[Profile]) -> Iterator[str]:
    for profile in profiles:
        yield profile.name + (f", used by {profile.users}" if profile.users else "")
        points = ", ".join(f"{p} {fmt or 'not rounded'}" for p, fmt in profile.points.items())
        if scope(profile):
            yield f"  {scope(profile)}"
        yield f"  rounding points: {points or 'none'}"
        for title, table in (
            ("formats", profile.formats),
            ("options", profile.options),
            ("overflow", profile.overflow),
            ("rounding", profile.modes),
            ("orders", profile.orders),
        ):
            if table:
                entries = ", ".join(f"{key} {_alternatives(v)}" for key, v in table.items())
                yield f"  {title}: {entries}"
        for key, reason in profile.vacuous.items():
            yield f"  cannot be shown: {key}: {reason}"
        if profile.keeps_subnormals:
            yield "  subnormals are kept"


def _alternatives(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shapes(contract: Contract) -> Iterator[str]:
    for kind, shapes in (
        ("real", contract.shapes),
        ("awkward", contract.awkward),
        ("stress", contract.stress),
        ("exact", contract.exact_shapes),
    ):
        if shapes:
            # a shape may stand several times, for more rows of it
            times = Counter(_shape(shape) for shape in shapes)
            said = (
                shape + (f" ({count} times)" if count > 1 else "") for shape, count in times.items()
            )
            yield f"{kind}: {'; '.join(said)}"


def _shape(shape: Shape) -> str:
    return " ".join(f"{dim}={size}" for dim, size in shape.items())


def _launch(launch: Any) -> str:
    batch = f"{launch.batch} rows a call" if launch.batch else "all rows at once"
    more = f", {dict(launch.arguments)}" if launch.arguments else ""
    return f"{launch.name}: {launch.layout}, {batch}, {launch.threads} threads{more}"


def _serves(parameters: Mapping[str, tuple[str, ...]]) -> str:
    return "".join(f", {key}={'|'.join(values)}" for key, values in parameters.items())


def _implementations(name: str) -> Iterator[str]:
    for item in registry.implementations(name):
        needs = f", needs {', '.join(packages(item.requires))}" if item.requires else ""
        order = "".join(f", {freedom} at most {depth}" for freedom, depth in item.order.items())
        yield f"{item.profile}/{item.name} on {item.engine}{_serves(item.parameters)}{order}{needs}"


def _controls(name: str) -> Iterator[str]:
    for item in registry.controls(name):
        gate = f", caught by {' or '.join(item.gates)}" if item.colour == "red" else ""
        expect = f", as a {item.expect.replace('_', ' ')}" if item.expect else ""
        yield f"{item.profile}/{item.colour}.{item.name}{_serves(item.parameters)}{gate}{expect}"
