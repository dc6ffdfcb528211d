"""Functions of registers that are executed for several instructions at once: mma.sync, and arithmetic of floats.

Integer arithmetic is a call of NumPy or two: to bring its operands together takes as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import several
from contract.engines.ptx.batch import Batch
from contract.engines.ptx.decoded import Instruction, Kin
from contract.engines.ptx.moves import Into, Taken
from contract.engines.ptx.opcode import Semantics, loud

Array = NDArray[Any]
# slots that one instruction reads, registers that it writes
Part = tuple[list[int], list[int]]
FLOATS = frozenset(["f16", "f16x2", "bf16", "bf16x2", "f32", "f64"])


def kin_of(
    instruction: Instruction, semantics: Semantics, taken: list[Taken], into: list[Into]
) -> Kin | None:
    """What an instruction of the table may be joined with; None for nothing."""
    if any(semantics.carry) or any(fit is not None for _, fit in [*taken, *into]):
        return None
    part = [slot for slot, _ in taken], [index for index, _ in into]
    join: Callable[[list[Part]], Callable[[Batch], bool]]
    if semantics.product is not None:
        join = functools.partial(_products, semantics.product, semantics.approximate)
    elif semantics.warp or len(semantics.results) > 1 or FLOATS.isdisjoint(instruction.parts):
        return None
    else:
        join = functools.partial(_lanes, loud(semantics.call), semantics.approximate)
    return Kin(instruction.opcode, part, join)


def _products(product: Any, approximate: bool, parts: list[Part]) -> Callable[[Batch], bool]:
    """Several mma.sync, which often share A or B."""
    count, (of_a, of_b, _) = len(parts), product.counts
    a, which_a = _each_once([tuple(slots[:of_a]) for slots, _ in parts])
    b_, which_b = _each_once([tuple(slots[of_a : of_a + of_b]) for slots, _ in parts])
    c = [tuple(slots[of_a + of_b :]) for slots, _ in parts]

    def run(b: Batch) -> bool:
        if not several.fit(b, count):
            return False
        stacked = (_stacked(b, one) for one in (a, b_, c))
        found = product(*stacked, which_a, which_b, b.skew if approximate else 0)
        for (_, into), results in zip(parts, found, strict=True):
            for index, value in zip(into, results, strict=True):
                if index >= 0:
                    b.regs[index] = value
        return True

    return run


def _each_once(registers: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], Array]:
    """Each once, and of each which that is."""
    every = list(dict.fromkeys(registers))
    return every, np.array([every.index(one) for one in registers])


def _stacked(b: Batch, slots: list[tuple[int, ...]]) -> Array:
    """(n, k, lanes) from n times k slots."""
    made = np.empty((len(slots), len(slots[0]), b.lanes), b.regs[slots[0][0]].dtype)
    for rows, one in zip(made, slots, strict=True):
        for row, slot in zip(rows, one, strict=True):
            row[:] = b.regs[slot]
    return made


def _lanes(
    call: Callable[..., Any], approximate: bool, parts: list[Part]
) -> Callable[[Batch], bool]:
    """Several of one function of each lane, with one result: as one with so many times the lanes."""
    count = len(parts)
    columns = list(zip(*(slots for slots, _ in parts), strict=True))
    into = [index for _, (index,) in parts]
    # an operand that is the same for all, as most constants are
    shared = [len(set(column)) == 1 for column in columns]

    def run(b: Batch) -> bool:
        lanes, regs = b.lanes, b.regs
        if not several.fit(b, count):
            return False
        values = []
        for column, same in zip(columns, shared, strict=True):
            first = regs[column[0]]
            if same and len(first) == 1:
                values.append(first)
                continue
            made = np.empty((count, lanes), first.dtype)
            for row, slot in zip(made, column, strict=True):
                row[:] = regs[slot]
            values.append(made.reshape(-1))
        found = call(*values, skew=b.skew) if approximate else call(*values)
        if found.size != count * lanes:
            return False
        for index, row in zip(into, found.reshape(count, lanes), strict=True):
            regs[index] = row
        return True

    return run
