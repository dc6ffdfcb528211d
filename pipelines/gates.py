"""Gates of a pipeline's outputs, joined by `and`, and the negative controls that show that they can turn red.

    gates = [Gate("logits", lambda out: compare_logits(out, expected), [at_least("cosine", 0.9999),
                                                                        at_most("logits.widest", 0.1)])]
    report = judge(gates, logits, [NegativeControl("zero output", zero_output),
                                   NegativeControl("previous position's logits", previous_position),
                                   NegativeControl("one word flipped", lambda _: run(flip_bit(weights, ...)))])

A verdict is green where every gate ran and every one is green; without a gate it is red. A control gives the output of a
pipeline that is broken in one way, and the same gates have to turn red; one that cannot move the output is declared
`blind`, with the reason, and is listed as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from contract.errors import CaseError, DeclarationError
from contract.pipelines.run_record import json_value


@dataclass(frozen=True)
class Limit:
    """Bounds of one field of what a gate measures; a value that is not finite keeps no bound."""

    #: Name of an attribute or key; dots lead further in: "logits.kl".
    field: str
    least: float = -math.inf
    most: float = math.inf

    def __post_init__(self) -> None:
        bounds = [b for b in (self.least, self.most) if not math.isinf(b)]
        if not bounds or math.isnan(self.least + self.most) or self.least > self.most:
            raise DeclarationError(
                f"limit of {self.field!r} from {self.least} to {self.most}; give a finite least or most value, the least"
                " below the most"
            )

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.field} = {self.least:g}"
        below = "" if math.isinf(self.least) else f" >= {self.least:g}"
        above = "" if math.isinf(self.most) else f" <= {self.most:g}"
        return f"{self.field}{below}{above}"


def at_least(field: str, value: float) -> Limit:
    """field >= value."""
    return Limit(field, least=value)


def at_most(field: str, value: float) -> Limit:
    """field <= value."""
    return Limit(field, most=value)


def exactly(field: str, value: float) -> Limit:
    """field = value."""
    return Limit(field, value, value)


@dataclass(frozen=True)
class Gate:
    """What is measured of an output, and the limits that it has to keep.

    Raises:
        DeclarationError: no limit, which would pass everything.
    """

    name: str
    #: measure(output) -> an object or mapping that has the limits' fields.
    measure: Callable[[Any], Any]
    limits: Sequence[Limit]

    def __post_init__(self) -> None:
        if not self.limits:
            raise DeclarationError(f"gate {self.name!r} has no limit; it would pass everything")


@dataclass(frozen=True)
class NegativeControl:
    """A pipeline broken in one way."""

    name: str
    #: apply(right output) -> the broken pipeline's output; leaves what it is given as it is.
    apply: Callable[[Any], Any]
    #: Why it cannot move what the gates measure; empty where it has to.
    blind: str = ""


@dataclass(frozen=True)
class GateResult:
    name: str
    #: 'green', 'red' (a limit is not kept) or 'error' (it did not run: nothing is known).
    outcome: str
    detail: str
    #: Field of a limit -> its value; None where it could not be read.
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Verdict:
    """Gates joined by `and`."""

    gates: tuple[GateResult, ...]

    @property
    def green(self) -> bool:
        """Whether there are gates, every one ran, and every one is green."""
        return bool(self.gates) and all(gate.outcome == "green" for gate in self.gates)

    @property
    def red(self) -> tuple[str, ...]:
        """Names of the gates of which a limit is not kept."""
        return tuple(gate.name for gate in self.gates if gate.outcome == "red")


@dataclass(frozen=True)
class ControlResult:
    name: str
    #: 'red' as it has to be, 'missed', 'blind' as declared, 'error' (it did not run) or 'not run' (the verdict is not
    #: green without it).
    outcome: str
    detail: str
    #: Names of the gates that are red.
    seen_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What the gates say of a pipeline, and what the controls say of the gates."""

    name: str
    verdict: Verdict
    controls: tuple[ControlResult, ...]

    @property
    def exit_code(self) -> int:
        """0 where all gates are green and all controls red or blind, else 1."""
        seen = all(control.outcome in ("red", "blind") for control in self.controls)
        return 0 if self.verdict.green and seen else 1

    def lines(self) -> list[str]:
        """The counts first, then one line for each gate and control."""
        outcomes = [control.outcome for control in self.controls]
        counts = ", ".join(
            f"{outcomes.count(o)} {o}"
            for o in ("red", "blind", "missed", "error", "not run")
            if o in outcomes
        )
        green = sum(gate.outcome == "green" for gate in self.verdict.gates)
        colour = "green" if self.verdict.green else "RED"
        gates = f"{green} of {len(self.verdict.gates)} gates green"
        found = [
            f"{self.name}: {colour}, {gates}, {len(outcomes)} control{'s' * (len(outcomes) != 1)}{f': {counts}' if counts else ''}"
        ]
        for gate in self.verdict.gates:
            found.append(f"  gate {_shown(gate.outcome)}  {gate.name}: {gate.detail}")
        for control in self.controls:
            found.append(f"  control {_shown(control.outcome)}  {control.name}: {control.detail}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        gates = [vars(gate) | {"values": dict(gate.values)} for gate in self.verdict.gates]
        found: dict[str, Any] = json_value({
            "name": self.name, "green": self.verdict.green, "exit_code": self.exit_code, "gates": gates,
            "controls": [vars(control) for control in self.controls],
        })  # fmt: skip
        return found


def _shown(outcome: str) -> str:
    """Of a fixed width; what needs a look in capitals, so that colour is not needed."""
    return (outcome if outcome in ("green", "red", "blind") else outcome.upper()).ljust(7)


def judge(
    gates: Sequence[Gate],
    output: Any,
    controls: Sequence[NegativeControl] = (),
    name: str = "pipeline",
) -> Report:
    """Run the gates on an output, and on that of every control.

    Controls run where the verdict is green alone: against a red one everything is red. Afterwards the gates run once more,
    since a control that changed the output it was given has spoiled those after it.

    Raises:
        DeclarationError: two gates or two controls of one name.
    """
    for kind, items in (("gates", gates), ("controls", controls)):
        names = [item.name for item in items]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise DeclarationError(f"{name}: two {kind} are named {twice[0]!r}; name each apart")
    verdict = verdict_of(gates, output)
    if not verdict.green:
        skipped = [ControlResult(c.name, "not run", "the verdict is not green") for c in controls]
        return Report(name, verdict, tuple(skipped))
    results = tuple(_try(control, gates, output, verdict) for control in controls)
    if controls and not verdict_of(gates, output).green:
        detail = "a control changed the output it was given; let it copy"
        spoiled = GateResult("output as it was before the controls", "error", detail, {})
        verdict = Verdict((*verdict.gates, spoiled))
    return Report(name, verdict, results)


def verdict_of(gates: Sequence[Gate], output: Any) -> Verdict:
    """The gates' results on one output; a gate that fails to run is an error, never green."""
    return Verdict(tuple(_run(gate, output) for gate in gates))


def _run(gate: Gate, output: Any) -> GateResult:
    try:
        measured = gate.measure(output)
        values = {limit.field: _field(measured, limit.field) for limit in gate.limits}
    except Exception as error:  # noqa: BLE001 - a gate that did not run is no pass, and the others have to run
        return GateResult(gate.name, "error", _said(error), {})
    red = [limit for limit in gate.limits if not _kept(limit, values[limit.field])]
    shown = [f"{limit} (is {_number(values[limit.field])})" for limit in red or gate.limits]
    return GateResult(gate.name, "red" if red else "green", ", ".join(shown), values)


def _try(
    control: NegativeControl, gates: Sequence[Gate], output: Any, right: Verdict
) -> ControlResult:
    try:
        wrong = verdict_of(gates, control.apply(output))
    except Exception as error:  # noqa: BLE001 - one broken control is not the end of the report
        return ControlResult(control.name, "error", _said(error))
    if wrong.red:
        declared = "; declared blind, which it is not" if control.blind else ""
        return ControlResult(
            control.name, "red", f"seen by {', '.join(wrong.red)}{declared}", wrong.red
        )
    if failed := [gate for gate in wrong.gates if gate.outcome == "error"]:
        return ControlResult(
            control.name, "error", f"gate {failed[0].name} did not run: {failed[0].detail}"
        )
    if control.blind:
        return ControlResult(control.name, "blind", control.blind)
    same = [gate.values for gate in wrong.gates] == [gate.values for gate in right.gates]
    why = "no measure moved" if same else "every measure kept its limits"
    return ControlResult(
        control.name, "missed", f"{why}; tighten a gate, or declare it blind with the reason"
    )


def _field(measured: Any, path: str) -> float | None:
    """A number by its dotted name; None where it is None, as for what could not be compared."""
    for name in path.split("."):
        if isinstance(measured, Mapping):
            measured = measured[name]
        elif measured is not None:
            measured = getattr(measured, name)
    if measured is None:
        return None
    if not isinstance(measured, bool | int | float | np.bool_ | np.integer | np.floating):
        raise CaseError(f"{path} is {measured!r}; a limit is of a number")
    return float(measured)


def _kept(limit: Limit, value: float | None) -> bool:
    return value is not None and math.isfinite(value) and limit.least <= value <= limit.most


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.6g}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def zero_output(output: Any) -> Any:
    """An output of the same shapes, all zeros; mappings, tuples and lists of tensors or arrays too."""
    if isinstance(output, torch.Tensor):
        return torch.zeros_like(output)
    if isinstance(output, np.ndarray):
        return np.zeros_like(output)
    if isinstance(output, Mapping):
        return {name: zero_output(value) for name, value in output.items()}
    if isinstance(output, tuple | list):
        return type(output)(zero_output(value) for value in output)
    raise CaseError(f"no zero output of a {type(output).__name__}; give a control of your own")


def previous_position(output: Any) -> Any:
    """Each position's row in place of the next one's: (..., positions, features); the first stays.

    Raises:
        CaseError: fewer than two positions, which cannot be exchanged.
    """
    if output.ndim < 2 or output.shape[-2] < 2:
        raise CaseError(
            f"an output of shape {tuple(output.shape)} has no previous position; give two or more"
        )
    rows = [0, *range(output.shape[-2] - 1)]
    return output[..., rows, :]


def flip_bit(tensors: Mapping[str, Any], name: str, *, word: int, bit: int) -> dict[str, Any]:
    """The tensors with one bit of one stored element flipped; only that tensor is copied.

    Args:
        tensors: torch tensors or arrays by name.
        name: which of them.
        word: its element, all axes counted through.
        bit: from 0, the lowest.

    Raises:
        CaseError: no such tensor, element or bit.
    """
    x = _tensor(tensors, name)
    torchs = isinstance(x, torch.Tensor)
    copied: Any = x.detach().clone().contiguous() if torchs else np.array(x, order="C")
    size, elements = int(copied.itemsize), math.prod(x.shape)
    if not 0 <= word < elements or not 0 <= bit < 8 * size:
        raise CaseError(
            f"{name} has {elements} elements of {8 * size} bits; word {word}, bit {bit} is none of them"
        )
    flat = copied.reshape(-1)
    stored = flat.view(torch.uint8).numpy() if torchs else flat.view(np.uint8)
    # the lowest byte comes first
    stored[word * size + bit // 8] ^= np.uint8(1 << bit % 8)
    return {**tensors, name: copied}


def swap_layers(
    tensors: Mapping[str, Any], pattern: str, first: int, second: int
) -> dict[str, Any]:
    """The tensors with all of two layers exchanged; nothing is copied.

    Args:
        tensors: by name.
        pattern: how the names of a layer's tensors begin, its number as {}: "blk.{}." or "model.layers.{}.".
        first, second: the layers.

    Raises:
        CaseError: a layer without tensors, or two layers that are not alike.
    """
    layers = [
        {name.removeprefix(start) for name in tensors if name.startswith(start)}
        for start in (pattern.format(first), pattern.format(second))
    ]
    if first == second or "{}" not in pattern or not all(layers):
        raise CaseError(
            f"{pattern!r} gives {len(layers[0])} and {len(layers[1])} tensors of layers {first} and {second}; give a"
            " pattern with {} for the layer's number, and two layers that there are"
        )
    swapped = dict(tensors)
    for rest in sorted(layers[0] | layers[1]):
        a, b = pattern.format(first) + rest, pattern.format(second) + rest
        x, y = _tensor(tensors, a), _tensor(tensors, b)
        if tuple(x.shape) != tuple(y.shape) or x.dtype != y.dtype:
            raise CaseError(
                f"{a} is {x.dtype} {tuple(x.shape)}, {b} is {y.dtype} {tuple(y.shape)}; swap layers of one kind"
            )
        swapped[a], swapped[b] = y, x
    return swapped


def _tensor(tensors: Mapping[str, Any], name: str) -> Any:
    if name not in tensors:
        some = ", ".join(sorted(tensors)[:3])
        raise CaseError(f"no tensor {name!r}; there are {len(tensors)}: {some}, ...")
    return tensors[name]


def skip_call(kernel: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The kernel, but for one call, counted from 0, that does nothing: a stale slot where it appends to a cache."""
    count = iter(range(1 << 62))

    def skipping(*operands: Any, **named: Any) -> Any:
        return None if next(count) == call else kernel(*operands, **named)

    return skipping
