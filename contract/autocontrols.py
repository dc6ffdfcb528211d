"""Controls straight from the reference: one red per rounding point, option and enumerated parameter, one green per
freedom, and the null kernels.

A red one is the nominal reading with one thing changed; a green one is a legal execution with one freedom driven hard.
They run in the judge, which reads the reference anyway, and are judged by the identical gate path as implementations.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from contract import formats
from contract.case import Case, Kernel, make_case, take_rows
from contract.declare import Contract, exists
from contract.errors import ContractError, DeclarationError
from contract.interval import Array
from contract.ranges import OutputRange, case_range, option_sets, output_shape, plain_run
from contract.readings.base import Change
from contract.readings.sample import NOMINAL, Choice, SampleReading

#: Where automatic and null controls may be caught; the gate that did is printed.
ANY_GATE = ("shapes", "stress", "exact")

Outputs = dict[str, Array]
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Auto:
    """One automatic control; `about` is the point, option, parameter or freedom it changes."""

    name: str
    colour: str
    kind: str
    about: str
    run: Callable[[Kernel, Case, int], Outputs]


def nominal(
    kernel: Kernel,
    case: Case,
    *,
    change: Change | None = None,
    options: Mapping[str, Any] | None = None,
    parameters: Mapping[str, str] | None = None,
    choice: Choice = NOMINAL,
    seed: int = 0,
) -> Outputs:
    """The plain execution, with one thing changed."""
    rng = np.random.default_rng(seed)
    if change is not None and _is_fp32(kernel, change):
        # an fp32 step would do the named point's work: the steps before it are kept wider, which is legal
        choice = replace(choice, wide=1.0)
    return plain_run(
        kernel,
        case,
        lambda: SampleReading(
            kernel.contract, kernel.profile, change=change, choice=choice, rng=rng
        ),
        option_sets(kernel)[0] if options is None else options,
        parameters,
    )


def _is_fp32(kernel: Kernel, change: Change) -> bool:
    names = (kernel.profile.points[p] for p in (*change.drop, *change.modes))
    return any(name is not None and formats.get(name).precision >= 24 for name in names)


def tiny_case(kernel: Kernel) -> Case:
    """A case of the smallest kind, to learn which points and freedoms the reference uses."""
    contract = kernel.contract
    shape = {
        dim: min(4, size) if dim in contract.row_dims else size
        for dim, size in (contract.stress or contract.awkward or contract.shapes)[0].items()
    }
    shape = kernel.sized({**{dim: 2 for dim in contract.row_dims}, **shape})
    values = {
        # an index of one row is 0
        o.name: np.full(tuple(shape[d] for d in o.dims), float((o.limit(shape) or 2) > 1))
        for o in kernel.inputs()
    }
    return make_case(kernel, shape, values)


def uses(kernel: Kernel) -> tuple[dict[str, str], list[str], set[str]]:
    """The freedoms with their bounds, the points in order, and the last points (whose value is an output)."""
    return _kept_of(kernel, _uses, _read_once)


# Kernel id -> the contract it was read of, and what it uses.
_uses: dict[str, tuple[Contract, tuple[dict[str, str], list[str], set[str]]]] = {}


def _kept_of(
    kernel: Kernel, table: dict[str, tuple[Contract, Kept]], make: Callable[[Kernel], Kept]
) -> Kept:
    """What `make` finds of a kernel, found once for each contract."""
    known = table.get(kernel.id)
    if known is None or known[0] is not kernel.contract:
        known = table[kernel.id] = (kernel.contract, make(kernel))
    return known[1]


def _read_once(kernel: Kernel) -> tuple[dict[str, str], list[str], set[str]]:
    reading = SampleReading(kernel.contract, kernel.profile)
    case = tiny_case(kernel)
    from contract.ranges import evaluate

    inputs = {o.name: reading.load(case.value(kernel, o), narrow=True) for o in kernel.inputs()}
    try:
        outputs = evaluate(reading, kernel, inputs, case.scalars, option_sets(kernel)[0])
    except ContractError:
        raise
    except Exception as error:
        raise DeclarationError(_mistake(kernel, error)) from error
    last = {
        point
        for point, value in reading.values.items()
        if any(value is out for out in outputs.values())
    }
    return dict(reading.used), list(reading.points_seen), last


def _mistake(kernel: Kernel, error: Exception) -> str:
    """One line about a reference that cannot be read: where it went wrong and what it may do."""
    reference = kernel.contract.reference
    file = inspect.getsourcefile(inspect.unwrap(reference)) or "?"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    line = frames[-1].lineno if frames else 0
    said = str(error).replace("'SampleReading' object has no attribute", "r has no step")
    return (
        f"{Path(file).name}:{line}: the reference of {kernel.id} cannot be read: {type(error).__name__}: {said};"
        " a reference computes with its inputs, numbers and the steps of r (docs/first-contract.md): + - * /,"
        " r.square, r.maximum, r.where(r.less(a, b), x, y), ... and no Python branch on a value"
    )


def changes(kernel: Kernel) -> dict[str, tuple[str, Change]]:
    """Faults of the rounding points: name -> (point, change). The last point of an output is never dropped, only
    re-rounded: nothing could be stored without it."""
    _, seen, last = uses(kernel)
    found: dict[str, tuple[str, Change]] = {}
    for point in seen:
        if kernel.profile.points[point] is None:
            continue
        if point not in last:
            found[f"drop-{point}"] = (point, Change(drop=frozenset({point})))
        if kernel.profile.modes.get(point) == "toward_zero":
            found[f"nearest-{point}"] = (point, Change(modes={point: "nearest_even"}))
        else:
            found[f"truncate-{point}"] = (point, Change(modes={point: "toward_zero"}))
    return found


def other_options(kernel: Kernel) -> dict[str, tuple[str, dict[str, Any]]]:
    """Option values that the profile does not list: name -> (option, all options with that one changed)."""
    base = option_sets(kernel)[0]
    found = {}
    for option, values in kernel.contract.options.items():
        listed = kernel.profile.options[option]
        for value in values:
            if value not in (listed if isinstance(listed, tuple) else (listed,)):
                found[f"{option}={value}"] = (option, {**base, option: value})
    return found


def other_parameters(kernel: Kernel) -> dict[str, tuple[str, dict[str, str]]]:
    """Other values of enumerated parameters that read no more than this kernel's operands."""
    mine = {o.name for o in kernel.inputs()}
    written = {o.name for o in kernel.outputs()}
    found = {}
    named = {o.format for o in kernel.contract.operands}
    for key, values in kernel.contract.parameters.items():
        if f"{{{key}}}" in named:
            # another storage format is another dtype: refused before any value is compared
            continue
        for value in values:
            changed = {**kernel.parameters, key: value}
            needs = {o.name for o in kernel.contract.inputs() if exists(o, changed)}
            makes = {o.name for o in kernel.contract.outputs() if exists(o, changed)}
            if _sizes(kernel, changed) != _sizes(kernel, kernel.parameters):
                # operands of another size are refused, too
                continue
            if value != kernel.parameters[key] and needs <= mine and makes == written:
                found[f"{key}={value}"] = (key, changed)
    return found


def _sizes(kernel: Kernel, parameters: Mapping[str, str]) -> dict[str, int]:
    return kernel.contract.sized(kernel.contract.shapes[0], parameters)


def automatic(kernel: Kernel) -> list[Auto]:
    """Every automatic and null control of a kernel, in a fixed order."""
    vacuous = kernel.profile.vacuous
    found: list[Auto] = []
    for name, (point, change) in changes(kernel).items():
        if not kernel.declared(vacuous, point, name):
            found.append(Auto(name, "red", "automatic", point, _changed(change)))
    for name, (option, options) in other_options(kernel).items():
        if not kernel.declared(vacuous, option, name):
            found.append(Auto(name, "red", "automatic", option, _optioned(options)))
    for name, (parameter, values) in other_parameters(kernel).items():
        if not kernel.declared(vacuous, name):
            found.append(Auto(name, "red", "automatic", parameter, _parametrised(values)))
    found += [
        Auto(name, "green", "automatic", name, _chosen(choice))
        for name, choice in _greens(kernel).items()
    ]
    found += [
        Auto(name, "red", "null", name, run)
        for name, run in NULLS.items()
        if name not in kernel.contract.honest_nulls
    ]
    return found


def _changed(change: Change) -> Callable[[Kernel, Case, int], Outputs]:
    return lambda kernel, case, seed: nominal(kernel, case, change=change)


def _optioned(options: dict[str, Any]) -> Callable[[Kernel, Case, int], Outputs]:
    return lambda kernel, case, seed: nominal(kernel, case, options=options)


def _parametrised(parameters: dict[str, str]) -> Callable[[Kernel, Case, int], Outputs]:
    return lambda kernel, case, seed: nominal(kernel, case, parameters=parameters)


def _chosen(choice: Choice) -> Callable[[Kernel, Case, int], Outputs]:
    return lambda kernel, case, seed: nominal(kernel, case, choice=choice, seed=seed)


def _greens(kernel: Kernel) -> dict[str, Choice]:
    used, _, _ = uses(kernel)
    bounds = " ".join(used.values())
    greens = {"wide": Choice(wide=1.0)}
    if not kernel.profile.keeps_subnormals:
        greens["ftz"] = Choice(ftz=1.0)
    if "order" in bounds or "depth" in bounds:
        greens.update({f"order-{o}": Choice(order=o) for o in ("sequential", "sorted")})
    if "ulps" in bounds:
        greens.update(
            {
                "ulps-plus": Choice(ulps="plus"),
                "ulps-minus": Choice(ulps="minus"),
                "ulps-random": Choice(ulps="random"),
            }
        )
    greens["second-form"] = Choice(alternative="second", fused="yes")
    return greens


# -- null kernels


def _right(kernel: Kernel, case: Case) -> Outputs:
    """The plain execution; kept, because all null kernels of a kernel start from it on the same cases."""
    key = (kernel.id, tuple(case.shape.items()), tuple(case.scalars.items()),
           *(hash(bits.tobytes()) for bits in case.operands.values()))  # fmt: skip
    if key not in _kept:
        _kept.clear()
        _kept[key] = nominal(kernel, case)
    return dict(_kept[key])


_kept: dict[tuple[Any, ...], Outputs] = {}


def _empty(kernel: Kernel, case: Case) -> Outputs:
    return {
        o.name: np.zeros(output_shape(o, case), kernel.format(o).storage) for o in kernel.outputs()
    }


def _zeros(kernel: Kernel, case: Case, seed: int) -> Outputs:
    return _empty(kernel, case)


def _mean(kernel: Kernel, case: Case, seed: int) -> Outputs:
    result = _right(kernel, case)
    for operand in kernel.outputs():
        fmt = kernel.format(operand)
        values = formats.decode(result[operand.name], fmt)
        finite = values[np.isfinite(values)]
        mean = np.full(values.shape, finite.mean() if finite.size else 0.0)
        result[operand.name] = formats.encode(formats.round_to(mean, fmt), fmt)
    return result


def _copy(kernel: Kernel, case: Case, seed: int) -> Outputs:
    first = kernel.inputs()[0]
    result = {}
    for operand, bits in zip(kernel.outputs(), _empty(kernel, case).values(), strict=True):
        fmt = kernel.format(operand)
        x = case.value(kernel, first)
        x = x if x.shape == bits.shape else np.resize(x, bits.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            stored = formats.round_to(np.where(np.isnan(x) & (not fmt.has_nan), 0.0, x), fmt)
        result[operand.name] = formats.encode(stored, fmt)
    return result


def _rolled(axis_of: Callable[[Kernel, Any], int | None]) -> Callable[[Kernel, Case, int], Outputs]:
    def run(kernel: Kernel, case: Case, seed: int) -> Outputs:
        right = _right(kernel, case)
        rolled = {}
        for operand in kernel.outputs():
            axis = axis_of(kernel, operand)
            bits = right[operand.name]
            rolled[operand.name] = bits if axis is None or not bits.ndim else np.roll(bits, 1, axis)
        return rolled

    return run


def _unwritten(kernel: Kernel, case: Case, seed: int) -> Outputs:
    # what fresh memory holds: here a fixed pattern, so that the control is deterministic
    return {
        name: np.full_like(bits, np.array(0x5A5A5A5A5A5A5A5A, np.uint64).astype(bits.dtype))
        for name, bits in _empty(kernel, case).items()
    }


def _one_ulp_beyond(kernel: Kernel, case: Case, seed: int) -> Outputs:
    """One element, one ulp beyond the nearer end of its range: of the first row, where one of it can be moved."""
    right, rows = _right(kernel, case), case.rows(kernel)
    for count in (rows,) if kernel.shares else dict.fromkeys((1, rows)):
        piece = case if count == rows else take_rows(kernel, case, slice(0, count))
        allowed = case_range(kernel, piece)
        for operand in kernel.outputs():
            axis = kernel.row_axis(operand) or 0
            bits = right[operand.name][(slice(None),) * axis + (slice(0, count),)]
            if (found := _moved(allowed[operand.name], bits)) is not None:
                right[operand.name] = right[operand.name].copy()
                right[operand.name][found[0]] = found[1]
                return right
    return right


def _moved(out: OutputRange, bits: Array) -> tuple[tuple[int, ...], Any] | None:
    """Place and bits of the first element that can be moved out of its range by one step."""
    lo, hi = out.lo.ravel().astype(np.int64), out.hi.ravel().astype(np.int64)
    state = np.zeros(lo.shape, np.uint8) if out.nan is None else out.nan.ravel()
    is_float = out.fmt.kind == "float"
    limit = 0
    if is_float:
        got = formats.ordered(bits, out.fmt).ravel()
        limit = int(formats.ordered(formats.encode(np.array([out.fmt.max]), out.fmt), out.fmt)[0])
    else:
        got = formats.decode(bits, out.fmt).ravel().astype(np.int64)
    for i in np.flatnonzero(state == 0):
        beyond = hi[i] + 1 if hi[i] - got[i] <= got[i] - lo[i] else lo[i] - 1
        if is_float and not -limit < beyond < limit:
            continue
        try:
            moved = (
                formats.from_ordered(np.array([beyond]), out.fmt)
                if is_float
                else formats.encode(np.array([float(beyond)]), out.fmt)
            )
        except (ValueError, OverflowError):
            continue
        place = tuple(int(k) for k in np.unravel_index(i, bits.shape))
        if is_float:
            changed = bits.copy()
            changed[place] = moved[0]
            if not out.refused(changed)[place]:
                continue
        return place, moved[0]
    return None


NULLS: dict[str, Callable[[Kernel, Case, int], Outputs]] = {
    "null-zeros": _zeros,
    "null-mean": _mean,
    "null-copy": _copy,
    "null-previous-row": _rolled(lambda kernel, operand: kernel.row_axis(operand)),
    "null-neighbour": _rolled(
        lambda kernel, operand: len(operand.dims) - 1 if operand.dims else None
    ),
    "null-unwritten": _unwritten,
    "null-one-ulp-beyond": _one_ulp_beyond,
}


def run(kernel: Kernel, name: str, case: Case, seed: int) -> Outputs:
    """The outputs of one automatic or null control, `COLOUR.NAME`, on a case."""
    return _kept_of(kernel, _controls, _by_name)[name].run(kernel, case, seed)


def _by_name(kernel: Kernel) -> dict[str, Auto]:
    return {f"{auto.colour}.{auto.name}": auto for auto in automatic(kernel)}


# Kernel id -> the contract it was read of, and its automatic controls.
_controls: dict[str, tuple[Contract, dict[str, Auto]]] = {}
