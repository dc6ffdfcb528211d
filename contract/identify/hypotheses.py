"""What a black box may compute, out of a contract's own declarations: profiles, subsets of rounding points, options,
enumerated parameters, and, around those that come closest, other roundings of a point and other accumulators of a sum.

A hypothesis is a kernel whose profile states it, with one combination of options: one alternative has to explain all
outputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from contract import autocontrols
from contract.case import Kernel, concrete, kernels_of
from contract.declare import Contract, Profile, cases_of, exists, scope
from contract.errors import ContractError
from contract.orders import Tree

#: Combinations of points and options that are tried whole; beyond, up to so many points of a profile are changed at once.
MOST, FEW = 4096, 3
#: Formats of running sums, and of points that a profile rounds to fp32 or not at all, that are tried beside its own.
NARROW = ("bf16", "fp16")
#: The profile's name in what is printed and pasted.
FOUND = "found"


@dataclass(frozen=True)
class Hypothesis:
    """One way to compute a kernel.

    Attributes:
        kernel: with a profile that may be declared nowhere.
        options: one value each.
        scalars: values of the scalars that the black box fixes.
        base: the declared profile that it differs least from.
        every: the format that every step is rounded to (contract.identify.every_step), or "".
    """

    kernel: Kernel
    options: Mapping[str, Any]
    scalars: Mapping[str, float]
    base: Profile
    every: str = ""

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal hypotheses."""
        p = self.kernel.profile
        tables = (
            self.kernel.parameters,
            p.points,
            p.formats,
            p.overflow,
            p.modes,
            self.options,
            self.scalars,
        )
        return (
            *(tuple(sorted(table.items(), key=lambda item: item[0])) for table in tables),
            tuple((name, str(order)) for name, order in sorted(p.orders.items())),
            p.keeps_subnormals,
            self.every,
        )

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """In what it differs from the declared profile, in words."""
        p, found = self.kernel.profile, []
        for point, fmt in p.points.items():
            own = self.base.points[point]
            if fmt != own:
                found.append(
                    f"`{point}` not rounded" if fmt is None else f"`{point}` rounded to {fmt}"
                )
        for point, mode in p.modes.items():
            if self.base.modes.get(point) != mode:
                found.append(f"`{point}` rounded {mode_words(mode)}")
        for name, order in p.orders.items():
            if self.base.orders.get(name) != order:
                found.append(f"`{name}` {order_words(order)}")
        for option, value in self.options.items():
            if value not in listed(self.base, option):
                found.append(f"option {option}={value}")
        if not is_declared(self.kernel):
            found.append(f"the profile is {scope(self.base)}")
        if self.every:
            found.append(f"every step rounded to {self.every}")
        return tuple(found)

    @property
    def declared(self) -> bool:
        """Whether it is a profile as it stands."""
        return not self.changes

    def words(self) -> str:
        """The profile, the parameters, and in what it differs."""
        parts = [f"profile {self.base.name}"]
        parts += [f"{name}={value}" for name, value in self.kernel.parameters.items()]
        alternatives = [o for o in self.options if len(listed(self.base, o)) > 1]
        parts += [f"{o}={self.options[o]}" for o in alternatives]
        parts += [f"{name}={value!r}" for name, value in self.scalars.items()]
        return ", ".join(parts) + (f", but {', '.join(self.changes)}" if self.changes else "")


def mode_words(mode: str) -> str:
    """How a point rounds, in words."""
    return {
        "toward_zero": "toward zero (truncated)",
        "half_away": "to nearest, ties away from zero",
        "nearest_even": "to nearest even",
    }.get(mode, mode.replace("_", " "))


def order_words(order: Tree) -> str:
    """The tree of a sum, in words."""
    parts = [f"summed {'one after the other' if order.kind == 'sequential' else 'in pairs'}"]
    if order.accumulator != "fp32":
        parts.append(f"in {order.accumulator}")
    if order.products is not None:
        parts.append(f"with products rounded to {order.products}")
    return " ".join(parts)


def listed(profile: Profile, option: str) -> tuple[Any, ...]:
    """The values of an option that a profile lists."""
    value = profile.options[option]
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Signature:
    """Kernels of one contract that read and write operands of the same names, dims and formats."""

    kernels: tuple[Kernel, ...]

    @property
    def first(self) -> Kernel:
        return self.kernels[0]

    def words(self) -> str:
        """Inputs and outputs with their formats."""
        kernel = self.first
        inputs, outputs = (
            ", ".join(f"{o.name} {kernel.format(o).name}" for o in operands)
            for operands in (kernel.inputs(), kernel.outputs())
        )
        return f"{inputs} -> {outputs}"


def signatures(contract: Contract, stated: Mapping[str, str]) -> list[Signature]:
    """The contract's kernels by what they read and write, in its order; `stated`: parameters and formats that are given."""
    groups: dict[tuple[Any, ...], list[Kernel]] = {}
    for kernel in (*kernels_of(contract), *_undeclared(contract)):
        formats = {o.name: kernel.format(o).name for o in (*kernel.inputs(), *kernel.outputs())}
        known = {**formats, **kernel.parameters}
        if any(known.get(name, value) != value for name, value in stated.items()):
            continue
        key = tuple(
            (o.name, o.dims, o.role, formats[o.name]) for o in (*kernel.inputs(), *kernel.outputs())
        )
        groups.setdefault((*key, _lengths(kernel)), []).append(kernel)
    # a profile under parameters that it is not declared for is a hypothesis, and no signature of its own
    return [Signature(tuple(kernels)) for kernels in groups.values() if is_declared(kernels[0])]


def _undeclared(contract: Contract) -> Iterator[Kernel]:
    """The contract's profiles under parameters that they are not declared for."""
    for values in cases_of(contract.parameters.values()):
        parameters = dict(zip(contract.parameters, values, strict=True))
        for profile in contract.profiles:
            kernel = Kernel(contract, parameters, concrete(profile, parameters))
            if not is_declared(kernel) and _reads(kernel):
                yield kernel


def is_declared(kernel: Kernel) -> bool:
    """Whether its profile is declared for its parameters."""
    return exists(kernel.profile, kernel.parameters)


def _reads(kernel: Kernel) -> bool:
    """Whether the reference can be read so."""
    try:
        kernel.sized(kernel.contract.shapes[0])
        autocontrols.uses(kernel)
    except ContractError:
        return False
    return True


def _lengths(kernel: Kernel) -> tuple[Any, ...]:
    """Sizes that follow from the parameters: a packed weight of other bits is another operand."""
    return tuple(sorted(kernel.sized(kernel.contract.shapes[0]).items()))


@dataclass
class Listed:
    """Hypotheses, and what is to be said of how they were chosen."""

    hypotheses: list[Hypothesis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def first_round(signature: Signature, scalars: Sequence[Mapping[str, float]]) -> Listed:
    """Every profile with every subset of its points and every combination of options."""
    found = Listed()
    seen: set[tuple[Any, ...]] = set()
    by_parameters: dict[tuple[Any, ...], list[Kernel]] = {}
    for kernel in signature.kernels:
        by_parameters.setdefault(tuple(kernel.parameters.items()), []).append(kernel)
    for kernels in by_parameters.values():
        declared = [k.profile for k in kernels]
        for kernel in kernels:
            points, whole = _assignments(kernel, declared)
            if not whole:
                found.notes.append(
                    f"{kernel.id}: too many subsets of points to try all: up to {FEW} changed at once, and all dropped"
                )
            for chosen, options, fixed in itertools.product(
                points, option_choices(kernel.contract), scalars
            ):
                one = _made(kernel, {"points": chosen}, options, fixed, declared)
                if one.key not in seen:
                    seen.add(one.key)
                    found.hypotheses.append(one)
    return found


def option_choices(contract: Contract) -> list[dict[str, Any]]:
    """Every combination of the values of all options."""
    keys = list(contract.options)
    return [
        dict(zip(keys, values, strict=True))
        for values in itertools.product(*contract.options.values())
    ]


def _assignments(kernel: Kernel, declared: Sequence[Profile]) -> tuple[list[dict[str, Any]], bool]:
    """Formats of all points: every combination of what the profiles have for each and of none, or those with few changes."""
    _, seen, last = autocontrols.uses(kernel)
    own = dict(kernel.profile.points)
    # also what profiles of other operands round it to
    elsewhere = [concrete(p, kernel.parameters).points for p in kernel.contract.profiles]
    choices = {
        point: list(dict.fromkeys([own[point], *(points[point] for points in elsewhere), None]))
        for point in seen
    }
    vacuous = _vacuous(declared)
    choices = {p: [own[p]] if p in vacuous else values for p, values in choices.items()}
    # an output's last point stores it: the format is the signature's
    choices = {p: [own[p]] if p in last else values for p, values in choices.items()}
    if math.prod(map(len, choices.values())) * max(1, len(option_choices(kernel.contract))) <= MOST:
        return [
            {**own, **dict(zip(choices, values, strict=True))}
            for values in itertools.product(*choices.values())
        ], True
    free = [point for point, values in choices.items() if len(values) > 1]
    found = [own, {**own, **{point: None for point in free}}]
    for count in range(1, FEW + 1):
        for points in itertools.combinations(free, count):
            others = ([v for v in choices[p] if v != own[p]] for p in points)
            found += [
                {**own, **dict(zip(points, values, strict=True))}
                for values in itertools.product(*others)
            ]
    return found, False


def second_round(hypothesis: Hypothesis, *, sums: bool = True) -> Iterator[Hypothesis]:
    """The same with one point, or all of them, rounded another way, one more point rounded, or one sum in a narrow
    accumulator (where `sums`: these are executed term by term); of what rounds every step nothing else is varied."""
    if hypothesis.every:
        return
    profile = hypothesis.kernel.profile
    used, seen, _ = autocontrols.uses(_declared(hypothesis))
    rounded = [point for point in seen if profile.points[point] is not None]
    for mode in ("toward_zero", "half_away"):
        groups = [[point] for point in rounded] + ([rounded] if len(rounded) > 1 else [])
        for points in groups:
            yield _varied(hypothesis, modes={**profile.modes, **dict.fromkeys(points, mode)})
    vacuous = _vacuous(hypothesis.kernel.contract.profiles)
    wide = [p for p in seen if profile.points[p] in (None, "fp32") and p not in vacuous]
    for point in wide:
        for fmt in NARROW:
            yield _varied(hypothesis, points={**profile.points, point: fmt})
    for name, bound in used.items() if sums else ():
        for order in _narrow_orders(bound):
            yield _varied(hypothesis, orders={**profile.orders, name: order})


def _declared(hypothesis: Hypothesis) -> Kernel:
    """A kernel of the registry: what is kept of kernels is kept by id."""
    return Kernel(hypothesis.kernel.contract, hypothesis.kernel.parameters, hypothesis.base)


def _narrow_orders(bound: str) -> Iterator[Tree]:
    for accumulator in NARROW:
        for kind in ("sequential", "pairwise"):
            if bound.startswith("dot:"):
                yield Tree(kind, accumulator=accumulator, products=accumulator)
                yield Tree(kind, accumulator=accumulator)
            elif bound.startswith("sum:"):
                yield Tree(kind, accumulator=accumulator)


def _varied(hypothesis: Hypothesis, **profile: Any) -> Hypothesis:
    kernel = hypothesis.kernel
    changed = replace(kernel.profile, **profile)
    return replace(hypothesis, kernel=Kernel(kernel.contract, kernel.parameters, changed))


def _made(
    kernel: Kernel,
    profile: Mapping[str, Any],
    options: Mapping[str, Any],
    scalars: Mapping[str, float],
    declared: Sequence[Profile],
) -> Hypothesis:
    """With the declared profile of the same policies that it differs least from, and its vacuous points as that has them."""
    changed = replace(kernel.profile, **profile)
    made = Kernel(kernel.contract, kernel.parameters, changed)
    near = [
        Hypothesis(made, options, scalars, other)
        for other in declared
        if other.overflow == changed.overflow and other.keeps_subnormals == changed.keeps_subnormals
    ]
    best = min(near, key=lambda one: len(one.changes))
    points = {
        p: best.base.points[p] if p in _vacuous(declared) else f for p, f in changed.points.items()
    }
    return replace(best, kernel=replace(made, profile=replace(changed, points=points)))


def _vacuous(declared: Sequence[Profile]) -> set[str]:
    """Points that no input shows, as a profile declares it: that they are rounded is no discovery."""
    return {name.partition(",")[0].removeprefix("drop-") for p in declared for name in p.vacuous}
