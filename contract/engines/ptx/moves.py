"""Moves: of registers, constants and addresses, between state spaces, in and out of vectors.

Source: PTX ISA, sections 9.7.9.3 (mov), 9.7.9.4 (mov: packing), 9.7.9.20 (cvta), 9.7.9.19 (isspacep), 9.7.9.18
(createpolicy), 10 (Special Registers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.accesses import Run, malformed, unsupported, widen
from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import (
    UNSIGNED,
    Constant,
    Instruction,
    Kin,
    Negated,
    Parameter,
    Place,
    Program,
    Register,
    Sink,
    Special,
    Two,
    Vector,
)
from contract.engines.ptx.flow import flatten
from contract.engines.ptx.memory import WINDOW_BYTES, WINDOWS
from contract.engines.ptx.syntax import width

Array = NDArray[Any]
Taken = tuple[int, Callable[[Array], Array] | None]
Into = tuple[int, Callable[[Array], Array] | None]
KNOWN_SPECIALS = frozenset(
    [f"%{n}.{axis}" for n in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + [
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%lanemask_eq",
        "%lanemask_lt",
        "%lanemask_le",
        "%lanemask_gt",
        "%lanemask_ge",
    ]
    + ["%dynamic_smem_size", "%total_smem_size"]
)


def source(program: Program, what: Any, kind: str, instruction: Instruction) -> Taken:
    """The slot of a source, and how it is made what the instruction reads."""
    bits = 1 if kind == "pred" else int(kind[1:])
    if isinstance(what, Negated):
        if bits != 1:
            raise malformed(instruction, "a predicate where '!' stands")
        return what.of.index, np.logical_not
    if isinstance(what, Register):
        if what.width == bits:
            return what.index, None
        if bits == 1 or what.width == 1 or what.width < bits:
            raise malformed(instruction, f"a register of {bits} bits")
        dtype = UNSIGNED[bits]
        return what.index, lambda v: v.astype(dtype)
    if isinstance(what, Special) and what.name not in KNOWN_SPECIALS:
        raise unsupported(instruction, f"special register {what.name}")
    if not isinstance(what, (Constant, Place, Parameter, Special)):
        raise malformed(instruction, "a register or a constant")
    return program.slot(what, bits), None


def results(operand: Any, semantics: Any, instruction: Instruction) -> list[Into]:
    """Of each result its register (-1 for none), and how it is widened to it."""
    items = flatten([operand])
    kinds = list(semantics.results)[: len(semantics.results) - semantics.carry[1]]
    may_miss = not isinstance(operand, (Two, Vector)) and kinds == ["pred", "pred"]
    if len(items) != len(kinds) and not (may_miss and len(items) == 1):
        raise malformed(instruction, f"{len(kinds)} results")
    found: list[Into] = []
    for item, kind in zip(items, kinds, strict=False):
        if isinstance(item, Sink):
            found.append((-1, None))
        elif not isinstance(item, Register) or (item.width == 1) != (kind == "pred"):
            raise malformed(instruction, "a register to write" if kind != "pred" else "a predicate")
        elif kind == "pred":
            found.append((item.index, None))
        else:
            signed = getattr(semantics, "signed", False)
            found.append(
                (item.index, widen(("s" if signed else "b") + kind[1:], item, instruction))
            )
    return found


def mov(program: Program, instruction: Instruction) -> Run:
    """mov: of registers, constants, addresses of variables, special registers; packing and unpacking of vectors."""
    kind = instruction.parts[-1] if instruction.parts else ""
    bits = width(kind)
    if len(instruction.parts) != 1 or bits not in UNSIGNED:
        raise unsupported(instruction)
    if len(instruction.operands) != 2:
        raise malformed(instruction, "a destination and a source")
    to, what = instruction.operands
    raw = "pred" if bits == 1 else f"b{bits}"
    if isinstance(to, Vector):
        return _unpack(program, instruction, to, what, bits)
    if not isinstance(to, Register) or (to.width == 1) != (bits == 1):
        raise malformed(instruction, f"a register of {bits} bits")
    fit = widen(f"b{bits}", to, instruction) if bits > 1 else None
    if isinstance(what, Vector):
        return _pack(program, instruction, to, what, bits)
    slot, cut = source(program, what, raw, instruction)
    steps = [f for f in (cut, fit) if f is not None]
    index = to.index
    if not steps:
        instruction.kin = Kin("mov", (index, slot), _moves)
        return lambda b, m: b.put(index, b.regs[slot], m)

    def run(b: Batch, m: Mask) -> None:
        value = b.regs[slot]
        for step in steps:
            value = step(value)
        b.put(index, value, m)

    return run


def _moves(parts: list[tuple[int, int]]) -> Callable[[Batch], bool]:
    """Several moves of what is held as it is."""

    def run(b: Batch) -> bool:
        regs = b.regs
        for index, slot in parts:
            regs[index] = regs[slot]
        return True

    return run


def _each(instruction: Instruction, vector: Vector, bits: int) -> int:
    each = bits // max(len(vector.items), 1)
    if each not in (8, 16, 32) or each * len(vector.items) != bits:
        raise malformed(instruction, f"elements that make {bits} bits")
    return each


def _unpack(program: Program, instruction: Instruction, to: Vector, what: Any, bits: int) -> Run:
    each = _each(instruction, to, bits)
    slot, cut = source(program, what, f"b{bits}", instruction)
    into: list[int] = []
    fits = []
    for item in to.items:
        if not isinstance(item, (Register, Sink)):
            raise malformed(instruction, "registers in braces")
        into.append(item.index if isinstance(item, Register) else -1)
        fits.append(widen(f"b{each}", item, instruction) if isinstance(item, Register) else None)
    small, dtype = UNSIGNED[each], UNSIGNED[bits]

    def run(b: Batch, m: Mask) -> None:
        value = b.regs[slot] if cut is None else cut(b.regs[slot])
        for i, index in enumerate(into):
            if index >= 0:
                part = (value >> dtype(each * i) if i else value).astype(small)
                fit = fits[i]
                b.put(index, part if fit is None else fit(part), m)

    return run


def _pack(program: Program, instruction: Instruction, to: Register, what: Vector, bits: int) -> Run:
    each = _each(instruction, what, bits)
    taken = [source(program, item, f"b{each}", instruction) for item in what.items]
    dtype, index = UNSIGNED[bits], to.index

    def run(b: Batch, m: Mask) -> None:
        value: Any = None
        for i, (slot, cut) in enumerate(taken):
            part = b.regs[slot] if cut is None else cut(b.regs[slot])
            part = part.astype(dtype)
            value = part if value is None else value | part << dtype(each * i)
        b.put(index, value, m)

    return run


def cvta(program: Program, instruction: Instruction) -> Run:
    """cvta: an address of a state space to a generic one, or back."""
    parts = [p.split("::")[0] for p in instruction.parts]
    back = parts[:1] == ["to"]
    space = parts[1 if back else 0] if len(parts) > back else ""
    if parts[-1:] != ["u64"] or space not in ("global", "const", "shared", "local", "param"):
        raise unsupported(instruction)
    to, what = instruction.operands
    slot, cut = source(program, what, "b64", instruction)
    if not isinstance(to, Register) or to.width != 64 or cut is not None:
        raise malformed(instruction, "registers of 64 bits")
    shift = np.uint64(WINDOWS.get(space, 0))
    index = to.index
    if not shift:
        return lambda b, m: b.put(index, b.regs[slot], m)
    if back:
        return lambda b, m: b.put(index, b.regs[slot] - shift, m)
    return lambda b, m: b.put(index, b.regs[slot] + shift, m)


def isspacep(program: Program, instruction: Instruction) -> Run:
    """isspacep: whether a generic address lies in a state space."""
    space = instruction.parts[0].split("::")[0] if instruction.parts else ""
    if len(instruction.parts) != 1 or space not in ("global", "const", "shared", "local", "param"):
        raise unsupported(instruction)
    to, what = instruction.operands
    slot, _ = source(program, what, "b64", instruction)
    if not isinstance(to, Register) or to.width != 1:
        raise malformed(instruction, "a predicate")
    index = to.index

    def run(b: Batch, m: Mask) -> None:
        address = b.regs[slot]
        start = WINDOWS.get(space)
        if start is None:
            constant = space == "const"
            b.put(index, (address < np.uint64(WINDOWS["shared"])) & ~np.bool_(constant), m)
            return
        b.put(index, (address >= np.uint64(start)) & (address < np.uint64(start + WINDOW_BYTES)), m)

    return run


def policy(program: Program, instruction: Instruction) -> Run:
    """createpolicy: a hint to caches; its value is only passed on."""
    to = instruction.operands[0] if instruction.operands else None
    if not isinstance(to, Register) or to.width != 64:
        raise malformed(instruction, "a register of 64 bits")
    index = to.index
    return lambda b, m: b.put(index, np.zeros(1, np.uint64), m)
