"""For tests that exist already: is this output one that the contract allows?

contract.assert_allowed("rms_norm", out, x=x, weight=w, eps=1e-6, profile="two_step")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats, registry
from contract.case import (
    Case,
    Kernel,
    check_finite,
    check_values,
    find,
    kernels_of,
    scalars_of,
    shape_from,
    take_rows,
)
from contract.declare import Operand, only_for
from contract.engines.placement import TORCH_TYPES, to_bits
from contract.errors import CaseError, NotAllowed
from contract.interval import Array
from contract.judge import Failure
from contract.ranges import OutputRange, case_range, option_sets, refusals
from contract.verify import load_suites


@dataclass(frozen=True)
class Allowed:
    """What a contract allows for one output.

    Attributes:
        lower, upper: ends as float64.
        nan: 0 no NaN, 1 may be NaN, 2 must be NaN.
    """

    lower: Array
    upper: Array
    nan: Array


@dataclass(frozen=True)
class Judged:
    """What assert_allowed compared."""

    compared: int
    one_value_share: float


def assert_allowed(
    kernel: str,
    out: Any,
    *positional: Any,
    profile: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    **operands: Any,
) -> Judged:
    """Raise NotAllowed unless every output bit is one that the contract allows.

    Args:
        kernel: contract name.
        out: the output tensor; a tuple in the contract's order, or {output: tensor}, where there are several.
        profile: the contract's first where absent.
        rows: judge this many rows (first, last and random ones by `seed`) instead of all.
        **operands: inputs and scalars by name, as the contract declares them, and enumerated parameters. Tensors of any
            device; they are judged on the CPU in chunks.

    Returns:
        How many outputs were compared, and the share of them that has one allowed value.

    Raises:
        NotAllowed: names the first refused element, its bits, the allowed bits, and the dropped rounding point that
            reproduces all observed bits, if a single one does.
        CaseError: operands that do not fit the contract, or nothing to compare.
    """
    # a test's report shows the test, not this function
    __tracebackhide__ = True
    if rows is not None:
        rows = _whole("rows", rows, "judge at least one row, as a whole number", 1)
    seed = _whole("seed", seed, "give a whole number >= 0", 0)
    if isinstance(out, str) and not isinstance(kernel, str):
        raise CaseError(
            f"kernel is a {type(kernel).__name__} and out is {out!r}: the name comes first,"
            f" assert_allowed({out!r}, out, ...)"
        )
    target, case = _case(kernel, profile, operands, positional)
    outputs = _outputs(target, case, out)
    chosen: Array | None = None
    if rows is not None:
        case, outputs, chosen = _sample(target, case, outputs, rows, seed)
    compared = sum(int(bits.size) for bits in outputs.values())
    if not compared:
        raise CaseError(f"{target.id}: the outputs are empty; nothing was compared")
    best: tuple[int, dict[str, OutputRange], Mapping[str, Any]] | None = None
    for options in option_sets(target):
        ranges = case_range(target, case, options)
        refused = sum(int(mask.sum()) for mask in refusals(ranges, outputs).values())
        if not refused:
            single = sum(one.singles for name, one in ranges.items() if name in outputs)
            return Judged(compared, single / compared)
        if best is None or refused < best[0]:
            best = (refused, ranges, options)
    assert best is not None
    message = _message(target, case, outputs, *best, chosen, stated=profile is not None)
    assumed = _assumed(target, operands)
    # a cause that was found says more
    if assumed and "all observed bits" not in message:
        message += f"\n{assumed}"
    if profile is None and len(target.contract.profiles) > 1:
        message += (
            f"\nprofile {target.profile.name} was assumed; {_other_profiles(target, case, outputs)}"
        )
    raise NotAllowed(message)


def _whole(name: str, value: Any, repair: str, least: int) -> int:
    """A whole number of an argument; True is none."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        raise CaseError(f"{name}={value!r}; {repair}")
    return int(value)


def _unknown(kernel: Kernel, given: Mapping[str, Any]) -> str:
    """What was given under a name that the contract does not have."""
    known = {s.name for s in kernel.contract.scalars}
    taken = {o.name for o in kernel.inputs()}
    said = [_strange(kernel, name) for name in given if name not in known | taken]
    return f" ({'; '.join(said)})" if said else ""


def _strange(kernel: Kernel, name: str) -> str:
    """Why that name is none of this kernel's."""
    contract = kernel.contract
    if name in contract.options:
        fixed = (f"{p.name} has {p.options[name]}" for p in contract.profiles)
        return f"{name}= is an option, which the profile fixes: {', '.join(fixed)}"
    for operand in contract.inputs():
        if operand.name == name:
            return f"{name}= is for {only_for(operand.when)}"
    return f"no operand {name}"


def _assumed(kernel: Kernel, given: Mapping[str, Any]) -> str:
    """The parameters that took their first value because the caller stated none."""
    silent = [
        f"{key}={kernel.parameters[key]} was assumed ({' | '.join(values)})"
        for key, values in kernel.contract.parameters.items()
        if key not in given
    ]
    return "; ".join(silent)


def _other_profiles(target: Kernel, case: Case, outputs: Mapping[str, Array]) -> str:
    """What the other profiles of the same formats say of the outputs."""
    from contract.diagnose import same_formats

    fitting = []
    for kernel in same_formats(target):
        for options in option_sets(kernel):
            ranges = case_range(kernel, case, options)
            if not any(mask.any() for mask in refusals(ranges, outputs).values()):
                fitting.append(kernel.profile.name)
                break
    if fitting:
        return f"allowed under profile={' or '.join(map(repr, fitting))}"
    return f"name the one that is meant: {', '.join(p.name for p in target.contract.profiles)}"


def allowed(kernel: str, *positional: Any, profile: str | None = None, **operands: Any) -> Any:
    """The range itself, for plots and debugging: an Allowed, or {output: Allowed} where there are several outputs.

    Takes the operands of assert_allowed. Of options with listed alternatives the first is read.
    """
    target, case = _case(kernel, profile, operands, positional)
    found = {name: _view(out) for name, out in case_range(target, case).items()}
    return next(iter(found.values())) if len(found) == 1 else found


def _view(out: OutputRange) -> Allowed:
    def values(codes: Array) -> Array:
        wide = codes.astype(np.int64)
        return (
            formats.decode(formats.from_ordered(wide, out.fmt), out.fmt)
            if out.fmt.kind == "float"
            else wide.astype(np.float64)
        )

    nan = np.zeros(out.lo.shape, np.uint8) if out.nan is None else out.nan
    return Allowed(values(out.lo), values(out.hi), nan)


def _case(
    kernel: str, profile: str | None, operands: Mapping[str, Any], positional: tuple[Any, ...]
) -> tuple[Kernel, Case]:
    """The kernel and case that a call describes."""
    load_suites()
    if not isinstance(kernel, str):
        # its type alone: a tensor would be printed whole
        raise CaseError(
            f"kernel is a {type(kernel).__name__}; give a contract's name, as `contract list` shows it"
        )
    if positional:
        contract = registry.get(kernel)
        names = dict.fromkeys(
            [*(o.name for o in contract.inputs()), *(s.name for s in contract.scalars)]
        )
        raise CaseError(
            f"{kernel}: operands and scalars go by keyword: {', '.join(f'{name}=' for name in names)}"
        )
    if profile is not None:
        # find takes an empty one as the first
        registry.get(kernel).profile(profile)
    target = find(kernel, profile, _parameters(kernel, operands))
    assumed = _assumed(target, operands)
    assumed = assumed and f"; {assumed}"
    given = dict(operands)
    for name in target.parameters:
        given.pop(name, None)
    bits: dict[str, Array] = {}
    scalars: dict[str, float] = {}
    for scalar in target.contract.scalars:
        if scalar.name in given:
            scalars[scalar.name] = _number(target, scalar.name, given.pop(scalar.name))
        else:
            raise CaseError(
                f"{target.id}: give the scalar {scalar.name}= that the kernel was called with"
            )
    for operand in target.inputs():
        if operand.name not in given:
            raise CaseError(
                f"{target.id}: operand {operand.name}= is not given{_unknown(target, given)}; it takes"
                f" {', '.join(o.name for o in target.inputs())}{assumed}"
            )
        bits[operand.name] = _bits(target, operand, given.pop(operand.name))
    if given:
        known = (
            [o.name for o in target.inputs()]
            + [s.name for s in target.contract.scalars]
            + list(target.contract.parameters)
        )
        said = "; ".join(_strange(target, name) for name in given)
        raise CaseError(f"{target.id}: {said}; it has {', '.join(known)}{assumed}")
    try:
        shape = shape_from(target, {name: x.shape for name, x in bits.items()})
    except CaseError as error:
        raise CaseError(f"{error}{assumed}") from None
    for operand in target.inputs():
        check_values(target, operand, shape, bits[operand.name])
        if operand.finite:
            check_finite(target, operand, bits[operand.name])
    return target, Case(shape, bits, scalars_of(target, scalars), "operands given")


def _number(kernel: Kernel, name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes, bytearray)):
            # float() reads a number in them, and the kernel was called with none
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise CaseError(
            f"{kernel.id}: {name}={value!r} is a scalar; give the number that the kernel was called with"
        ) from None


def _parameters(kernel: str, operands: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(operands[name]) for name in registry.get(kernel).parameters if name in operands
    }


def _bits(kernel: Kernel, operand: Operand, value: Any) -> Array:
    """Storage bits of a tensor, whose dtype must be that of the operand's format."""
    fmt = kernel.format(operand)
    name = TORCH_TYPES[fmt.name]
    if not hasattr(value, "dtype"):
        number = isinstance(value, (bool, int, float))
        tensor = f", as a tensor of shape ({', '.join(operand.dims)})" if number else ""
        raise CaseError(
            f"{kernel.id}: {operand.name} is {type(value).__name__}, not a tensor; profile {kernel.profile.name}"
            f" needs {name}{tensor}"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != name:
        fitting = [
            other.profile.name
            for other in kernels_of(kernel.contract)
            if other.parameters == kernel.parameters
            and TORCH_TYPES[other.format(operand).name] == dtype
        ]
        taken = f"profile {' or '.join(fitting)} takes" if fitting else "no profile takes"
        raise CaseError(
            f"{kernel.id}: {operand.name} has dtype {dtype}, profile {kernel.profile.name} needs {name};"
            f" {taken} {dtype}"
        )
    if isinstance(value, np.ndarray):
        # not ascontiguousarray, which makes one dim of none
        return np.asarray(value, order="C").view(fmt.storage)
    try:
        return to_bits(value, fmt)
    except (AttributeError, RuntimeError, TypeError) as error:
        # sparse, nested, on the meta device, or no tensor at all
        where = ", ".join(str(getattr(value, x)) for x in ("layout", "device") if hasattr(value, x))
        raise CaseError(
            f"{kernel.id}: {operand.name} is a {type(value).__name__} ({where or 'no tensor'}) whose values cannot be"
            " read; give a dense tensor that holds them, as x.to_dense() or x.cpu()"
        ) from error


def _outputs(kernel: Kernel, case: Case, out: Any) -> dict[str, Array]:
    names = [o.name for o in kernel.outputs()]
    stages = {o.name for o in kernel.outputs() if o.stage}
    if isinstance(out, Mapping):
        found = {name: x for name, x in out.items() if x is not None or name not in stages}
    elif isinstance(out, (tuple, list)):
        if len(out) != len(names):
            raise CaseError(
                f"{kernel.id}: {len(out)} outputs given; the contract's are {', '.join(names)}"
            )
        found = dict(zip(names, out, strict=True))
    else:
        found = {names[0]: out}
    if not set(names) - stages <= set(found) <= set(names):
        raise CaseError(
            f"{kernel.id}: outputs are {', '.join(names)}; got {', '.join(map(str, found)) or 'none'}"
        )
    bits = {}
    for operand in (o for o in kernel.outputs() if o.name in found):
        bits[operand.name] = _bits(kernel, operand, found[operand.name])
        want = tuple(case.shape.get(d, -1) for d in operand.dims)
        if bits[operand.name].shape != want:
            raise NotAllowed(
                f"{kernel.id}: output {operand.name} has shape {bits[operand.name].shape}, the contract needs {want}"
            )
    return bits


def _sample(
    kernel: Kernel, case: Case, outputs: dict[str, Array], rows: int, seed: int
) -> tuple[Case, dict[str, Array], Array | None]:
    """Case and outputs of some rows, and which they are; all of them (None) where a sample cannot be judged alone."""
    total = case.rows(kernel)
    if kernel.shares or rows >= total or not kernel.contract.row_dims:
        return case, outputs, None
    inner = np.random.default_rng(seed).permutation(np.arange(1, total - 1))[: max(0, rows - 2)]
    chosen = np.unique(np.concatenate([[0, total - 1][:rows], inner])).astype(np.int64)
    kept = {}
    for operand in (o for o in kernel.outputs() if o.name in outputs):
        axis = kernel.row_axis(operand)
        kept[operand.name] = (
            outputs[operand.name] if axis is None else np.take(outputs[operand.name], chosen, axis)
        )
    return take_rows(kernel, case, chosen, f"{len(chosen)} rows of {total}"), kept, chosen


def _message(
    kernel: Kernel,
    case: Case,
    outputs: Mapping[str, Array],
    refused: int,
    ranges: Mapping[str, OutputRange],
    options: Mapping[str, Any],
    rows: Array | None,
    *,
    stated: bool,
) -> str:
    from contract.diagnose import cause_line, causes, element_lines

    masks = refusals(ranges, outputs)
    total = sum(mask.size for mask in masks.values())
    lines = [f"{kernel.id}: {refused:,} of {total:,} outputs are not allowed"]
    lines += element_lines(kernel, case, outputs, ranges, masks, rows)
    found = causes(
        kernel,
        Failure("assert_allowed", case, _plain(), outputs, options),
        outputs,
        {},
        masks,
        # without one that is stated, the last line says which are allowed
        profiles=stated,
    )
    return "\n".join([*lines, cause_line(found)] if found else lines)


def _plain() -> Any:
    from contract.declare import Launch

    return Launch("plain")
