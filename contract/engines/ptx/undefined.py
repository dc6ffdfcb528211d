"""Undefined values: what was never written, followed lane by lane until it becomes visible, which is a fault.

Visible are addresses, predicates of instructions and branches, and what is stored to global memory or given to an
atomic. A value that nothing depends on is none: compilers leave such behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import Instruction
from contract.engines.ptx.partly import chosen, undefined_bits
from contract.engines.ptx.syntax import width

Array = NDArray[Any]


def observe(b: Batch, instruction: Instruction, m: Mask) -> None:
    """Raise where an undefined value becomes visible: as an address, a predicate, the index of a branch."""
    guard = instruction.guard
    if guard is not None and guard.index in b.poison:
        bad = b.poison[guard.index] & m.lanes
        if bad.any():
            b.visible("its predicate was never defined", int(np.argmax(bad)))
    narrowed: Mask | None = m
    others = [
        r for r in instruction.observed if r in b.poison and (guard is None or r != guard.index)
    ]
    if others and guard is not None:
        narrowed = b.narrow(m, b.regs[guard.index], instruction.negated)
    for r in others:
        if narrowed is None:
            return
        bad = b.poison[r] & narrowed.lanes
        if bad.any():
            b.visible(
                "an address or operand that decides what is done was never defined",
                int(np.argmax(bad)),
            )


def execute(b: Batch, instruction: Instruction, m: Mask) -> None:
    """Execute where some register is undefined in some lane, and follow that."""
    poison = b.poison
    if poison.keys().isdisjoint(instruction.reads) and poison.keys().isdisjoint(instruction.writes):
        instruction.run(b, m)  # type: ignore[misc]  # bound by build.bind
        return
    observe(b, instruction, m)
    if not instruction.propagates:
        instruction.run(b, m)  # type: ignore[misc]  # bound by build.bind
        return
    guard = instruction.guard
    effective: Mask | None = m
    if guard is not None:
        effective = b.narrow(m, b.regs[guard.index], instruction.negated)
    bad = _propagated(b, instruction)
    instruction.run(b, m)  # type: ignore[misc]  # bound by build.bind
    if effective is not None:
        for target in instruction.writes:
            b.set_poison(target, bad, effective)


def _propagated(b: Batch, instruction: Instruction) -> Array | None:
    """Lanes whose result is undefined: an undefined source, unless the others decide the result alone."""
    found: Array | None = None
    guard = -1 if instruction.guard is None else instruction.guard.index
    for r in instruction.reads:
        if r == guard and instruction.reads != {guard}:
            continue
        bad = b.poison.get(r)
        if bad is not None:
            found = bad if found is None else found | bad
    if found is None:
        return None
    if instruction.root == "mma":
        return np.repeat(found.reshape(-1, 32).any(1), 32)
    if decided := DECIDED.get(instruction.root):
        found = found & ~decided(b, instruction)
    return found


def _bits(b: Batch, what: Any) -> tuple[Array, Array]:
    """A source's value and where it is undefined."""
    index = getattr(what, "index", None)
    if index is None:
        index = b.program.slots.get((what, 32), b.program.slots.get((what, 64), -1))
        value = b.regs[index] if index >= 0 else np.ones(1, np.uint32)
        return value, np.zeros(1, bool)
    return b.regs[index], b.poison.get(index, np.zeros(1, bool))


def _selected(b: Batch, instruction: Instruction) -> Array:
    """selp: the side that is not chosen does not matter."""
    _, first, second, chooser = instruction.operands
    p, undecided = _bits(b, chooser)
    bad = np.where(p, _bits(b, first)[1], _bits(b, second)[1])
    return ~(bad | undecided)


def _absorbed(b: Batch, instruction: Instruction) -> Array:
    """and with a defined 0 in every byte that is undefined, or with defined ones there."""
    found = np.zeros(b.lanes, bool)
    bits = width(instruction.parts[-1])
    first, second = instruction.operands[1:]
    for what, other in ((first, second), (second, first)):
        if getattr(other, "index", None) is None:
            continue
        index = getattr(what, "index", None)
        index = b.program.slots.get((what, bits)) if index is None else index
        if index is None:
            continue
        value, bad = b.regs[index], b.poison.get(index, np.zeros(1, bool))
        unknown = undefined_bits(b, other.index)
        neutral = unknown if instruction.root == "or" else np.zeros_like(unknown)
        found |= ((value & unknown) == neutral) & ~bad
    return found


def _cancelled(b: Batch, instruction: Instruction) -> Array:
    """xor and sub of a register with itself."""
    sources = instruction.operands[1:]
    return np.full(b.lanes, len(sources) == 2 and sources[0] == sources[1])


DECIDED: dict[str, Callable[[Batch, Instruction], Array]] = {
    "selp": _selected,
    "and": _absorbed,
    "or": _absorbed,
    "prmt": chosen,
    "xor": _cancelled,
    "sub": _cancelled,
}
