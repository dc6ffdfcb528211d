"""Rows of a contract whose symmetry hides a convention.

Each operand is moved as a kernel with another convention reads it: back to front along an axis, its halves exchanged,
neighbours exchanged, the nibbles of its bytes exchanged, two axes or two operands of one shape exchanged. The plain
execution of the reference on the moved operand is what such a kernel computes. Where drawn numbers of the operand's
format show the difference and no row that the gates judge is refused, the rows hide the convention: they are too
symmetric. A move that no input shows (the terms of a sum that may come in any order) is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from contract import autocontrols, formats
from contract.case import Case, Kernel, check_values, kernels_of
from contract.declare import Contract, Operand
from contract.errors import ContractError
from contract.inputs import generator, typical_values
from contract.interval import Array
from contract.judge import Bench
from contract.lint.findings import Finding
from contract.lint.places import contract_place
from contract.ranges import refusals

#: In this order: the rows that are proven able to show index faults come first.
SETS = ("exact", "stress", "shapes")
#: Drawn cases on which a move must show for it to be a convention at all.
DRAWS = 2
#: Elements of a case beyond which a set's further cases are left out.
LARGEST = 1 << 18

Moved = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Move:
    """One other convention: what it does, and the operands after it."""

    words: str
    apply: Moved


def findings(contract: Contract) -> tuple[list[Finding], int]:
    """The findings of a contract, and how many conventions were tried."""
    found: dict[str, Finding] = {}
    tried = 0
    for kernel in _distinct(contract):
        bench = Bench(kernel, "quick", 0)
        for move in moves(kernel):
            tried += 1
            if _hidden(kernel, bench, move):
                finding = Finding(
                    *contract_place(contract),
                    "symmetric-input",
                    f"{kernel.id}: no exact, stress or typical row shows a kernel that reads {move.words}; other numbers do",
                    "draw the operand of exact rows (exact=) and of typical data (typical=) without that symmetry",
                )
                found.setdefault(move.words, finding)
    return list(found.values()), tried


def _distinct(contract: Contract) -> Iterator[Kernel]:
    """One kernel for each set of parameters: how operands are read does not hang on the profile."""
    seen = []
    for kernel in kernels_of(contract):
        if kernel.parameters not in seen:
            seen.append(kernel.parameters)
            yield kernel


def moves(kernel: Kernel) -> list[Move]:
    """Every other convention of a kernel's operands."""
    found: list[Move] = []
    inputs = kernel.inputs()
    for operand in inputs:
        for axis, dim in enumerate(operand.dims):
            for words, order in _ORDERS.items():
                found.append(
                    Move(f"{operand.name} {words} along {dim}", _along(operand, axis, order))
                )
        if (
            operand.format in ("int32", "uint8", "int8", "uint32")
            and "4" in kernel.parameters.values()
        ):
            found.append(Move(f"the nibbles of {operand.name} exchanged", _nibbles(operand)))
        for a in range(len(operand.dims)):
            for b in range(a + 1, len(operand.dims)):
                if operand.dims[a] != operand.dims[b]:
                    words = f"{operand.name} with {operand.dims[a]} and {operand.dims[b]} exchanged"
                    found.append(Move(words, _transposed(operand, a, b)))
    for i, one in enumerate(inputs):
        for other in inputs[i + 1 :]:
            if one.dims == other.dims and kernel.format(one) == kernel.format(other):
                found.append(Move(f"{one.name} and {other.name} exchanged", _exchanged(one, other)))
    return found


def _reverse(n: int) -> Array:
    return np.arange(n)[::-1]


def _halves(n: int) -> Array:
    return np.roll(np.arange(n), n // 2)


def _neighbours(n: int) -> Array:
    order = np.arange(n)
    order[: n - n % 2] = order[: n - n % 2].reshape(-1, 2)[:, ::-1].reshape(-1)
    return order


_ORDERS: dict[str, Callable[[int], Array]] = {
    "back to front": _reverse,
    "with its halves exchanged": _halves,
    "with neighbours exchanged": _neighbours,
}


def _along(operand: Operand, axis: int, order: Callable[[int], Array]) -> Moved:
    def apply(bits: Mapping[str, Array]) -> Mapping[str, Array]:
        x = bits[operand.name]
        return {**bits, operand.name: np.take(x, order(x.shape[axis]), axis)}

    return apply


def _nibbles(operand: Operand) -> Moved:
    def apply(bits: Mapping[str, Array]) -> Mapping[str, Array]:
        x = np.ascontiguousarray(bits[operand.name])
        if not x.size or x.ndim == 0:
            return bits
        raw = x.view(np.uint8)
        return {**bits, operand.name: ((raw << 4) | (raw >> 4)).astype(np.uint8).view(x.dtype)}

    return apply


def _transposed(operand: Operand, a: int, b: int) -> Moved:
    """As memory of the other order is read: the values of the transpose in the shape of the operand."""

    def apply(bits: Mapping[str, Array]) -> Mapping[str, Array]:
        x = bits[operand.name]
        return {**bits, operand.name: np.swapaxes(x, a, b).reshape(x.shape)}

    return apply


def _exchanged(one: Operand, other: Operand) -> Moved:
    return lambda bits: {**bits, one.name: bits[other.name], other.name: bits[one.name]}


def _hidden(kernel: Kernel, bench: Bench, move: Move) -> bool:
    """Whether no judged row shows the move, and drawn numbers do."""
    cases = 0
    for name in SETS:
        for index, case in enumerate(bench.cases(name)):
            if sum(x.size for x in case.operands.values()) > LARGEST:
                continue
            moved = _moved(kernel, case, move)
            if moved is None:
                continue
            cases += 1
            outputs = autocontrols.nominal(kernel, moved)
            if any(x.any() for x in refusals(bench.range(name, index), outputs).values()):
                return False
    return cases > 0 and any(_shown(kernel, case, move) for case in _drawn(kernel, bench))


def _moved(kernel: Kernel, case: Case, move: Move) -> Case | None:
    """The case as the other convention reads it; None where it may not hold such values, or is the same."""
    operands = move.apply(case.operands)
    if all(np.array_equal(x, case.operands[name]) for name, x in operands.items()):
        return None if all(x.size < 2 for x in case.operands.values()) else _same(case)
    for operand in kernel.inputs():
        try:
            check_values(kernel, operand, case.shape, operands[operand.name])
        except ContractError:
            return None
    return _with(case, operands)


def _same(case: Case) -> Case:
    return _with(case, case.operands)


def _with(case: Case, operands: Mapping[str, Array]) -> Case:
    return replace(case, operands=dict(operands), values={}, ranges={})


def _drawn(kernel: Kernel, bench: Bench) -> Iterator[Case]:
    """Cases of the smallest shapes with operands drawn anew, from N(0, 1) or uniformly: without the declared samplers."""
    small = [case for case in bench.cases("shapes") if max(case.shape.values()) > 1]
    for turn, case in enumerate(small[:DRAWS]):
        if sum(x.size for x in case.operands.values()) > LARGEST:
            continue
        operands = {}
        for operand in kernel.inputs():
            fmt, rng = kernel.format(operand), generator("lint", turn, operand.name)
            bare = replace(operand, typical=None)
            values = typical_values(
                bare, fmt, rng, case.operands[operand.name].shape, operand.limit(case.shape)
            )
            if operand.positive:
                values = np.abs(values) + 0.125
            operands[operand.name] = formats.encode(formats.round_to(values, fmt), fmt)
        yield _with(case, operands)


def _shown(kernel: Kernel, case: Case, move: Move) -> bool:
    """Whether the plain executions before and after the move differ in a bit."""
    moved = _moved(kernel, case, move)
    if moved is None:
        return False
    before, after = (autocontrols.nominal(kernel, one) for one in (case, moved))
    return any(not np.array_equal(before[name], after[name]) for name in before)
