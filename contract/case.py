"""Kernels and cases: a contract with its parameters and profile fixed, and one full set of operands for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from contract import formats, registry
from contract.declare import Contract, Operand, Profile, cases_of, exists, scope, served
from contract.errors import CaseError, DeclarationError
from contract.interval import Array, Interval


@dataclass(frozen=True)
class Kernel:
    """A contract with one set of enumerated parameters under one profile: the unit of a verdict."""

    contract: Contract
    parameters: Mapping[str, str]
    profile: Profile

    @cached_property
    def name(self) -> str:
        """Contract name with the parameters that are not the first of their list: `rms_norm,gain=1+w`."""
        given = [
            f"{key}={value}"
            for key, value in self.parameters.items()
            if value != self.contract.parameters[key][0]
        ]
        return ",".join([self.contract.name, *given])

    @cached_property
    def id(self) -> str:
        return f"{self.name}/{self.profile.name}"

    @property
    def shares(self) -> str:
        """What the rows of this kernel share by contract; '' where they are independent."""
        listed = self.contract.shares_when
        if listed and not served(listed, self.parameters):
            return ""
        return self.contract.shares

    def declared(self, reasons: Mapping[str, str], *names: str) -> str:
        """The reason given for one of these names, for all parameters or (`NAME,gain=none`) for this kernel's; '' else."""
        for name in names:
            for key in (name, *(f"{name},{k}={v}" for k, v in self.parameters.items())):
                if key in reasons:
                    return reasons[key]
        return ""

    @cached_property
    def _operands(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        return self.contract.inputs(self.parameters), self.contract.outputs(self.parameters)

    @cached_property
    def _formats(self) -> dict[str, formats.Format]:
        return {}

    def inputs(self) -> tuple[Operand, ...]:
        return self._operands[0]

    def outputs(self) -> tuple[Operand, ...]:
        return self._operands[1]

    def sized(self, shape: Mapping[str, int]) -> dict[str, int]:
        """The shape with the dims that follow from others; a CaseError where one has another size."""
        return self.contract.sized(shape, self.parameters)

    def format(self, operand: Operand) -> formats.Format:
        """The operand's storage format under this profile."""
        if operand.name not in self._formats:
            named = self.profile.formats.get(operand.name, operand.format)
            self._formats[operand.name] = formats.get(named_format(named, self.parameters))
        return self._formats[operand.name]

    def row_axis(self, operand: Operand) -> int | None:
        """The axis of the first row dim in an operand; None where rows share it."""
        dim = self.contract.row_dims[0] if self.contract.row_dims else None
        return operand.dims.index(dim) if dim in operand.dims else None


def named_format(fmt: str, parameters: Mapping[str, str]) -> str:
    """A format's name, looked up where it is `{parameter}`."""
    return parameters[fmt[1:-1]] if fmt.startswith("{") else fmt


def concrete(profile: Profile, parameters: Mapping[str, str]) -> Profile:
    """The profile with the formats that parameters name filled in."""
    points = {
        point: fmt if fmt is None else named_format(fmt, parameters)
        for point, fmt in profile.points.items()
    }
    return profile if points == dict(profile.points) else replace(profile, points=points)


def kernels_of(contract: Contract) -> list[Kernel]:
    """Every kernel of a contract: its parameters' values times its profiles."""
    keys = list(contract.parameters)
    return [
        Kernel(
            contract,
            dict(zip(keys, values, strict=True)),
            concrete(profile, dict(zip(keys, values, strict=True))),
        )
        for values in cases_of(contract.parameters[key] for key in keys)
        for profile in contract.profiles
        if exists(profile, dict(zip(keys, values, strict=True)))
    ]


def find(
    name: str, profile: str | None = None, parameters: Mapping[str, str] | None = None
) -> Kernel:
    """The kernel of that contract name, profile (the first where None) and parameters.

    Raises:
        DeclarationError: no such contract, profile or parameter value.
    """
    contract = registry.get(name)
    asked = (name, profile, tuple(sorted((parameters or {}).items())))
    known = _found.get(asked)
    # a contract registered anew, under the same name, is another
    if known is not None and known.contract is contract:
        return known
    chosen = contract.profile(profile) if profile else contract.profiles[0]
    full = contract.full_parameters(parameters or {})
    if not exists(chosen, full):
        raise DeclarationError(
            f"contract {name}: profile {chosen.name} is {scope(chosen)}; asked for was"
            f" {', '.join(f'{k}={v}' for k, v in full.items())}"
        )
    found = _found[asked] = Kernel(contract, full, concrete(chosen, full))
    return found


#: What was asked for -> its kernel: a worker asks at every call.
_found: dict[tuple[Any, ...], Kernel] = {}


@dataclass(frozen=True)
class Case:
    """One full set of operands.

    Attributes:
        shape: dim -> size.
        operands: input name -> storage bits.
        scalars: scalar name -> value.
        label: where it came from, for messages.
        values: input name -> its float64 values, and ranges: what the range reading made of them; each once.
    """

    shape: Mapping[str, int]
    operands: Mapping[str, Array]
    scalars: Mapping[str, float]
    label: str = ""
    values: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)
    ranges: dict[str, Interval] = field(default_factory=dict, repr=False, compare=False)

    def value(self, kernel: Kernel, operand: Operand) -> Array:
        """The operand as float64 (computed once)."""
        if operand.name not in self.values:
            self.values[operand.name] = formats.decode(
                self.operands[operand.name], kernel.format(operand)
            )
        return self.values[operand.name]

    def forget(self) -> None:
        """Free what was computed of the operands."""
        self.values.clear()
        self.ranges.clear()

    def rows(self, kernel: Kernel) -> int:
        """How many indices the first row dim has."""
        return int(self.shape[kernel.contract.row_dims[0]]) if kernel.contract.row_dims else 1


def make_case(
    kernel: Kernel,
    shape: Mapping[str, int],
    values: Mapping[str, Array],
    scalars: Mapping[str, float] | None = None,
    label: str = "",
) -> Case:
    """A case from float64 values: each rounded once to its operand's format.

    Unsigned integers of a float operand's storage are taken as its bits: so a row can hold a NaN with a payload.
    """
    bits: dict[str, Array] = {}
    shape = kernel.sized(shape)
    if broken := kernel.contract.broken_sizes(shape):
        raise CaseError(f"{kernel.id}: sizes {dict(shape)} break a rule of the contract: {broken}")
    for operand in kernel.inputs():
        fmt = kernel.format(operand)
        if operand.name not in values:
            raise CaseError(
                f"{kernel.id}: operand {operand.name!r} is missing; operands are "
                f"{', '.join(o.name for o in kernel.inputs())}"
            )
        x = np.asarray(values[operand.name])
        want = tuple(shape[dim] for dim in operand.dims)
        if x.shape != want:
            raise CaseError(
                f"{kernel.id}: operand {operand.name} has shape {x.shape}, its dims {operand.dims} need {want}"
            )
        if fmt.kind == "float" and x.dtype == fmt.storage:
            bits[operand.name] = x
        else:
            rounded = formats.round_to(np.asarray(x, np.float64), fmt)
            bits[operand.name] = formats.encode(rounded, fmt)
        check_values(kernel, operand, shape, bits[operand.name])
    return Case(dict(shape), bits, scalars_of(kernel, scalars), label)


def check_values(kernel: Kernel, operand: Operand, shape: Mapping[str, int], bits: Array) -> None:
    """Refuse a value that the operand may not hold.

    Raises:
        CaseError: an index outside least .. below - 1, a code wider than its format, or a value that must be positive
            and is not.
    """
    fmt = kernel.format(operand)
    if fmt.bits < 8 and fmt.lowest >= 0:
        wrong = (bits >> fmt.bits) != 0
        if wrong.any():
            raise CaseError(
                f"{kernel.id}: {operand.name} holds {int(bits[wrong][0])}; {fmt.name} is one code of 0 to"
                f" {int(fmt.max)} in each element{_where(wrong)}"
            )
    if operand.positive:
        values = formats.decode(bits, kernel.format(operand))
        wrong = ~((values > 0) & (values < np.inf))
        if wrong.any():
            raise CaseError(
                f"{kernel.id}: {operand.name} holds {float(values[wrong].ravel()[0]):g}; it must be positive and finite"
                f"{_where(wrong)}"
            )
    limit = operand.limit(shape)
    if limit is None:
        return
    values = formats.decode(bits, kernel.format(operand))
    wrong = ~((values >= operand.least) & (values < limit))
    if wrong.any():
        first = float(values[wrong].ravel()[0])
        shown = int(first) if first.is_integer() else first
        raise CaseError(
            f"{kernel.id}: {operand.name} holds {shown}; values are {operand.least} to {limit - 1}"
            + (f" ({operand.below} - 1)" if isinstance(operand.below, str) else "")
            + _where(wrong)
        )


def check_finite(kernel: Kernel, operand: Operand, bits: Array) -> None:
    """Refuse a NaN or an infinity.

    Raises:
        CaseError: the operand holds one; a contract that declares it `finite` says nothing of such a call.
    """
    values = formats.decode(bits, kernel.format(operand))
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise CaseError(
            f"{kernel.id}: {operand.name}{_place(wrong)} is {float(values[wrong][0])!r}; the contract takes finite values"
            f" only for {operand.name}"
        )


def _place(wrong: Array) -> str:
    """The index of the first of them, in brackets; '' where there are no dims."""
    return str([int(i) for i in np.argwhere(wrong)[0]]) if wrong.ndim else ""


def _where(wrong: Array) -> str:
    return f"; the first is {_place(wrong)}" if wrong.ndim else ""


def scalars_of(
    kernel: Kernel, given: Mapping[str, float] | None, turn: int = 0
) -> dict[str, float]:
    """Every scalar's value: given, or its `turn`-th declared one."""
    out = {s.name: float(s.values[turn % len(s.values)]) for s in kernel.contract.scalars}
    for name, value in (given or {}).items():
        if name not in out:
            raise CaseError(
                f"{kernel.id}: no scalar {name!r}; scalars are {', '.join(out) or 'none'}"
            )
        out[name] = float(value)
    return out


def shape_from(kernel: Kernel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Dim sizes from the operands' shapes.

    Raises:
        CaseError: an operand with another number of dims, two operands that disagree on a dim, or a broken rule.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for operand in (*kernel.inputs(), *kernel.outputs()):
        if operand.name not in shapes:
            continue
        got = tuple(shapes[operand.name])
        if len(got) != len(operand.dims):
            raise CaseError(
                f"{kernel.id}: {operand.name} has shape {got}; it needs {len(operand.dims)} dims {operand.dims}"
            )
        for dim, size in zip(operand.dims, got, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise CaseError(
                    f"{kernel.id}: {operand.name} has {dim} = {size}, {origin[dim]} has {sizes[dim]}; they must agree"
                )
            origin.setdefault(dim, operand.name)
    sizes = kernel.sized(sizes)
    if set(sizes) >= {d for o in (*kernel.inputs(), *kernel.outputs()) for d in o.dims} and (
        broken := kernel.contract.broken_sizes(sizes)
    ):
        raise CaseError(f"{kernel.id}: sizes {sizes} break a rule of the contract: {broken}")
    return sizes


def take_rows(kernel: Kernel, case: Case, rows: Any, label: str = "") -> Case:
    """The case with only these indices of the first row dim (a slice or an index array)."""
    if not kernel.contract.row_dims:
        return case
    bits = {}
    count = None
    for operand in kernel.inputs():
        axis = kernel.row_axis(operand)
        x = case.operands[operand.name]
        if axis is not None:
            x = x[(slice(None),) * axis + (rows,)]
            count = x.shape[axis]
        bits[operand.name] = x
    if count is None:
        raise DeclarationError(
            f"{kernel.id}: no input has the row dim {kernel.contract.row_dims[0]}"
        )
    return Case(
        {**case.shape, kernel.contract.row_dims[0]: count}, bits, case.scalars, label or case.label
    )


def take_columns(kernel: Kernel, case: Case, count: int) -> Case:
    """The case with the first `count` indices of the contract's column dim."""
    dim = kernel.contract.column_dim
    if dim is None:
        raise DeclarationError(f"{kernel.id}: the contract names no column dim")
    keep = slice(0, min(count, int(case.shape[dim])))
    bits = {
        o.name: case.operands[o.name][tuple(keep if d == dim else slice(None) for d in o.dims)]
        for o in kernel.inputs()
    }
    return Case({**case.shape, dim: keep.stop}, bits, case.scalars, case.label)
