"""The registry: contracts, implementations and controls by name.

A dictionary for each, a decorator or function to add to it, getters that return copies. A name registered twice is an
error: it also catches one file imported under two names. What belongs to a contract is found by its name: workers ask
for one kernel's at every call.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from contract import orders
from contract.declare import GATE_NAMES, Contract, Control, Implementation, Launch, only_for
from contract.engines import HOST
from contract.errors import DeclarationError
from contract.held import TwoStep
from contract.suggest import suggest

F = TypeVar("F", bound=Callable[..., Any])
Item = TypeVar("Item", Implementation, Control)

_contracts: dict[str, Contract] = {}
_implementations: dict[str, tuple[Implementation, ...]] = {}
_controls: dict[str, tuple[Control, ...]] = {}
# contract -> its implementations in order, and what they were made from
_in_order: dict[str, tuple[tuple[Any, Any], list[Implementation]]] = {}
_origins: dict[str, str] = {}


def register(contract: Contract) -> Contract:
    """Add a contract; returns it, so that `rms_norm = register(Contract(...))` reads well."""
    if contract.name in _contracts:
        raise DeclarationError(
            f"contract {contract.name!r} is registered twice (again in {contract.reference.__module__});"
            " rename one, or import the file under one name only"
        )
    _contracts[contract.name] = contract
    _origins[contract.name] = str(sys._getframe(1).f_globals.get("__name__", ""))
    return contract


def origin(kernel: str) -> str:
    """The module in which a contract was registered."""
    return _origins.get(kernel, "")


def implementation(
    kernel: str,
    *,
    profile: str | tuple[str, ...] | None = None,
    name: str = "",
    engine: str = HOST,
    requires: Iterable[str] = (),
    order: Mapping[str, Any] | None = None,
    launches: Iterable[Launch] = (),
    repeatable: bool = True,
    invariant: Iterable[str] = (),
    in_place: bool = False,
    fusion: bool | None = None,
    nominal: str = "",
    **parameters: str | tuple[str, ...],
) -> Callable[[F], F]:
    """Register the decorated callable as an implementation of `kernel`.

    The callable receives operands and scalars by keyword (torch tensors and floats), the enumerated parameters that its
    signature names, and returns a tensor, a tuple in the order of the outputs, or {output: tensor}.

    A class takes the operands that stay in its constructor, and the others in its `__call__`: a verified one can hold a
    packed weight (`contract.held`).

    Args:
        kernel: name of the contract.
        profile: one profile or several (it then claims each); the contract's first where absent.
        name: shown in ids; the function's name where absent.
        engine: what runs it: 'host' calls it; 'ptx' calls it too, and executes the GPU kernels that it launches;
            on a GPU, where one is asked for or there, these are launched as well (engine 'gpu').
        requires: modules that the call imports, without whose packages the outcome is not_run; 'nvcc', the compiler.
        order: freedom -> depth, a declaration tighter than the contract's; it is then judged by its own.
        launches: further launches, beside the contract's.
        repeatable: False where atomics may move bits from run to run.
        invariant: what it promises not to move on ordinary rows.
        in_place: its output may share memory with the operand declared in_place_of.
        fusion: of GPU code, whether the compiler may fuse multiplications with additions; None: what the launcher says, as
            a device would run it. True or False judges another setting than a launcher that says nothing would run.
        nominal: of GPU code, why approximate instructions are judged at their nominal results alone and not at the ends
            of their bounds: the source that bounds what they are put together to, such as a library's function.
        **parameters: enumerated parameter values that it serves; all where absent.

    Raises:
        DeclarationError: a second implementation of the same name, or a name that cannot stand in an id.
    """

    module, place = _caller(2), _place(2)
    needs = _names("requires", requires)

    def add(call: F) -> F:
        served = _served(parameters)
        run: Callable[..., Any] = TwoStep(call) if inspect.isclass(call) else call
        profiles = (profile,) if profile is None or isinstance(profile, str) else profile
        for one in profiles:
            item = Implementation(
                kernel,
                one or "",
                name or _name_of(call),
                run,
                served,
                engine,
                needs,
                dict(order or {}),
                tuple(launches),
                repeatable,
                tuple(invariant),
                in_place,
                module,
                place,
                fusion,
                nominal,
            )
            others = _implementations.get(kernel, ())
            same = (o for o in others if o.profile == item.profile and o.parameters == served)
            _refuse_twice(f"implementation {kernel}/{item.profile}/{item.name}", item.name, same)
            _implementations[kernel] = (*others, item)
        return call

    return add


def _served(parameters: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Every parameter's values; a number is the value that it is written as."""
    return {
        key: tuple(map(str, value)) if isinstance(value, (tuple, list)) else (str(value),)
        for key, value in parameters.items()
    }


def _names(what: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise DeclarationError(f"{what}={given!r} is one string; give a tuple: ({given!r},)")
    return tuple(given)


def _caller(depth: int) -> str:
    """The module that registers: its file, and not the callable's, is where a declaration is edited."""
    return str(sys._getframe(depth).f_globals.get("__name__", ""))


def _place(depth: int) -> str:
    """FILE:LINE of the declaration."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextlib.contextmanager
def _declared_at(place: str) -> Iterator[None]:
    """What is wrong with a declaration is told with its file and line."""
    try:
        yield
    except DeclarationError as error:
        if not place:
            raise
        raise DeclarationError(f"{_shown(place)}: {error}") from None


def _refuse_twice(what: str, name: str, others: Iterable[Implementation | Control]) -> None:
    """Refuse a name that one of the others has, which stand where it would."""
    for other in others:
        if other.name == name:
            raise DeclarationError(
                f"{what} is registered twice (before in {_shown(other.place)}); rename one"
            )


def _shown(place: str) -> str:
    return place.removeprefix(os.getcwd() + os.sep)


def _name_of(call: Callable[..., Any]) -> str:
    name = getattr(call, "__name__", "")
    if not name:
        raise DeclarationError(f"{type(call).__name__} has no __name__; give name=")
    return str(name)


def _control(
    colour: str,
    kernel: str,
    profile: str | tuple[str, ...],
    gates: tuple[str, ...],
    name: str,
    requires: Iterable[str],
    expect: str,
    order: Mapping[str, Any] | None,
    parameters: Mapping[str, str | tuple[str, ...]],
    compiled: Mapping[str, Any],
) -> Callable[[F], F]:
    module, place = _caller(3), _place(3)
    needs = _names("requires", requires)

    def add(call: F) -> F:
        served = _served(parameters)
        for one in (profile,) if isinstance(profile, str) else profile:
            item = Control(
                kernel,
                one,
                name or _name_of(call),
                colour,
                gates,
                call,
                served,
                needs,
                "planted",
                expect,
                dict(order or {}),
                module,
                place,
                **compiled,
            )
            others = _controls.get(kernel, ())
            same = (
                o for o in others if (o.profile, o.colour, o.parameters) == (one, colour, served)
            )
            _refuse_twice(f"control {kernel}/{one}/{colour}.{item.name}", item.name, same)
            _controls[kernel] = (*others, item)
        return call

    return add


def red(
    kernel: str,
    *,
    profile: str | tuple[str, ...],
    gate: str,
    name: str = "",
    requires: Iterable[str] = (),
    expect: str = "",
    engine: str = HOST,
    fusion: bool | None = None,
    nominal: str = "",
    **parameters: str | tuple[str, ...],
) -> Callable[[F], F]:
    """Register the decorated callable as a planted red control: one fault, must fail at `gate`.

    `expect` is 'crash', 'timeout' or 'out_of_memory' where that is the plant; engine, fusion and nominal as an
    implementation's.
    """
    how = {"engine": engine, "fusion": fusion, "nominal": nominal}
    return _control("red", kernel, profile, (gate,), name, requires, expect, None, parameters, how)


def green(
    kernel: str,
    *,
    profile: str | tuple[str, ...],
    name: str = "",
    requires: Iterable[str] = (),
    order: Mapping[str, Any] | None = None,
    engine: str = HOST,
    fusion: bool | None = None,
    nominal: str = "",
    **parameters: str | tuple[str, ...],
) -> Callable[[F], F]:
    """Register the decorated callable as a green control: a legal variant that must pass every gate."""
    how = {"engine": engine, "fusion": fusion, "nominal": nominal}
    return _control("green", kernel, profile, (), name, requires, "", order, parameters, how)


def contracts() -> dict[str, Contract]:
    """A copy of the registered contracts, sorted by name."""
    return dict(sorted(_contracts.items()))


def implementations(kernel: str | None = None) -> list[Implementation]:
    """Registered implementations, sorted; those of one kernel where named.

    An implementation without a profile takes its contract's first.
    """
    if kernel is None:
        return [item for name in sorted(_implementations) for item in implementations(name)]
    state = _implementations.get(kernel, ()), _contracts.get(kernel)
    known = _in_order.get(kernel)
    # a worker asks at every call
    if known is None or any(a is not b for a, b in zip(known[0], state, strict=True)):
        listed = sorted(
            map(_with_profile, state[0]), key=lambda i: (i.profile, i.name, repr(i.parameters))
        )
        known = _in_order[kernel] = state, listed
    return list(known[1])


def controls(kernel: str | None = None) -> list[Control]:
    """Registered planted controls, sorted; those of one kernel where named."""
    return sorted(
        _of(_controls, kernel),
        key=lambda c: (c.kernel, c.profile, c.colour, c.name, repr(c.parameters)),
    )


def _of(table: Mapping[str, tuple[Item, ...]], kernel: str | None) -> Iterable[Item]:
    return chain.from_iterable(table.values()) if kernel is None else table.get(kernel, ())


@dataclass(frozen=True)
class Mark:
    """How far the registry was filled at some time: see `since`."""

    contracts: frozenset[str]
    implementations: Mapping[str, int]
    controls: Mapping[str, int]


def mark() -> Mark:
    """How far the registry is filled now."""
    return Mark(
        frozenset(_contracts),
        {kernel: len(items) for kernel, items in _implementations.items()},
        {kernel: len(items) for kernel, items in _controls.items()},
    )


def since(mark: Mark) -> tuple[list[Contract], list[Implementation], list[Control]]:
    """What was registered after the mark; it costs what that is, and not what the registry holds."""
    return (
        [contract for name, contract in _contracts.items() if name not in mark.contracts],
        [
            _with_profile(item)
            for kernel, items in _implementations.items()
            for item in items[mark.implementations.get(kernel, 0) :]
        ],
        [
            item
            for kernel, items in _controls.items()
            for item in items[mark.controls.get(kernel, 0) :]
        ],
    )


def get(kernel: str) -> Contract:
    """The contract of that name.

    Raises:
        DeclarationError: no such contract; the message lists the nearest names.
    """
    if kernel not in _contracts:
        head, _, rest = kernel.partition("/")
        name, *stated = head.split(",")
        if name in _contracts and (rest or stated):
            given = [f"{key}={value!r}" for key, _, value in (one.partition("=") for one in stated)]
            given += [f"profile={rest.partition('/')[0]!r}"] if rest else []
            raise DeclarationError(
                f"no contract {kernel!r}, which is an id: give {name!r} and {', '.join(given)}"
            )
        hint = suggest(kernel, _contracts, "contract list")
        raise DeclarationError(
            f"no contract {kernel!r}; {hint if _contracts else 'load a suite first'}"
        )
    return _contracts[kernel]


def check() -> None:
    """Refuse implementations and controls that name what no contract has; call once all suites are loaded."""
    _refuse_overlap()
    for item in implementations():
        with _declared_at(item.place):
            _check_item(f"implementation {item.name}", item)
    for control in controls():
        with _declared_at(control.place):
            _check_item(f"control {control.name}", control)
            for gate in control.gates:
                if gate not in GATE_NAMES:
                    raise DeclarationError(
                        f"control {control.kernel}/{control.name}: gate {gate!r}; gates are {', '.join(GATE_NAMES)}"
                    )


def _check_item(what: str, item: Implementation | Control) -> None:
    _check_order(what, item.kernel, item.order)
    _check_target(what, item.kernel, item.profile, item.parameters)


def _refuse_overlap() -> None:
    """Two implementations, or two controls, that would answer to one id: the second would never run."""
    for items in (implementations(), controls()):
        seen: dict[tuple[str, str, str], list[Any]] = {}
        for item in items:
            name = item.label if isinstance(item, Implementation) else f"{item.colour}.{item.name}"
            for other in seen.setdefault((item.kernel, item.profile, name), []):
                both = set(item.parameters) & set(other.parameters)
                if all(set(item.parameters[k]) & set(other.parameters[k]) for k in both):
                    with _declared_at(item.place):
                        raise DeclarationError(
                            f"{item.kernel}/{item.profile}/{item.name} is registered twice (in {other.module} and"
                            f" {item.module}) for overlapping parameters; rename one"
                        )
            seen[item.kernel, item.profile, name].append(item)


def _check_order(what: str, kernel: str, order: Mapping[str, Any]) -> None:
    freedoms = get(kernel).freedoms
    for name, depth in order.items():
        if name not in freedoms:
            raise DeclarationError(
                f"{what}: order of {name!r}; freedoms of {kernel} are {', '.join(freedoms) or 'none'}"
            )
        if not (depth >= 1 if type(depth) is int else type(depth).__module__ == orders.__name__):
            raise DeclarationError(
                f"{what}: order {name}={depth!r}; give a depth >= 1 (an int), or an order of contract.orders"
            )


def _check_target(
    what: str, kernel: str, profile: str, parameters: Mapping[str, tuple[str, ...]]
) -> None:
    contract = get(kernel)
    contract.profile(profile)
    if parameters and not contract.parameters:
        raise DeclarationError(
            f"{what}: {kernel} has no parameters; take {', '.join(f'{key}=' for key in parameters)} out"
        )
    for key, values in parameters.items():
        for value in values:
            if key not in contract.parameters or value not in contract.parameters[key]:
                raise DeclarationError(
                    f"{what}: {kernel} has no {key}={value!r}; parameters are {dict(contract.parameters)}"
                )
    when = contract.profile(profile).when
    if any(not set(parameters.get(key, values)) & set(values) for key, values in when.items()):
        stated = ", ".join(f"{key}={' or '.join(values)}" for key, values in parameters.items())
        raise DeclarationError(
            f"{what}: profile {profile} of {kernel} is for {only_for(when)} only, not for {stated}"
        )


def _with_profile(item: Implementation) -> Implementation:
    if item.profile or item.kernel not in _contracts:
        return item
    return replace(item, profile=_contracts[item.kernel].profiles[0].name)


def clear() -> None:
    """Forget everything (tests only)."""
    for table in (_contracts, _implementations, _controls):
        table.clear()
