"""ld and st: where each lane's address lies, what is checked of it, what is read or written.

Source: PTX ISA, sections 9.7.9.8 (ld), 9.7.9.11 (st), 5.1 (State Spaces), 6.4.1.1 (generic addressing).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import noncoherent, partly, several
from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import (
    SIGNED,
    UNSIGNED,
    Constant,
    Instruction,
    Kin,
    Memory,
    Parameter,
    Place,
    Program,
    Register,
    Sink,
    Vector,
)
from contract.engines.ptx.faults import Malformed, Unsupported
from contract.engines.ptx.memory import WINDOW_BYTES, WINDOWS, Bytes, Region, Space
from contract.engines.ptx.noting import note_read, write
from contract.engines.ptx.syntax import STRONG, width

Array = NDArray[Any]
Run = Callable[[Batch, Mask], None]
SPACES = ("global", "shared", "local", "const", "param")
# hints of caching and scope: what is read and written does not depend on them
HINTS = frozenset(
    [
        "weak",
        "nc",
        "ca",
        "cg",
        "cs",
        "cv",
        "wb",
        "wt",
        "lu",
        "gpu",
        "sys",
        "cluster",
        "unified",
        "L1::evict_normal",
        "L1::evict_unchanged",
        "L1::evict_first",
        "L1::evict_last",
        "L1::no_allocate",
        "L2::evict_last",
        "L2::evict_normal",
        "L2::evict_first",
        "L2::cache_hint",
        "L2::64B",
        "L2::128B",
        "L2::256B",
    ]
)


def unsupported(instruction: Instruction, why: str = "") -> Unsupported:
    return Unsupported(f"line {instruction.line}: {instruction.opcode}{': ' + why if why else ''}")


def malformed(instruction: Instruction, expected: str) -> Malformed:
    return Malformed(f"line {instruction.line}: expected {expected}, found {instruction.text!r}")


class Shape:
    """The modifiers of ld, st, atom and red that say what moves: space, type, elements, strength."""

    def __init__(self, instruction: Instruction, also: frozenset[str] = frozenset()) -> None:
        self.space, self.type, self.k = "generic", "", 1
        # narrow: of .cta scope, which other blocks are not in
        self.strong = self.releases = self.narrow = False
        self.rest: list[str] = []
        for part in instruction.parts:
            name = part.split("::")[0]
            if name in SPACES and part in (name, f"{name}::cta", f"{name}::entry", f"{name}::func"):
                self.space = name
            elif part in ("v2", "v4", "v8"):
                self.k = int(part[1:])
            elif part in STRONG:
                self.strong = True
                self.releases |= part in ("release", "acq_rel")
            elif width(part) and part != "pred":
                self.type = part
            elif part in also:
                self.rest.append(part)
            elif part == "cta":
                self.narrow = True
            elif part not in HINTS:
                raise unsupported(instruction, f"modifier .{part}")
        if width(self.type) not in SIGNED:
            raise unsupported(instruction, f"type .{self.type}" if self.type else "no type")
        self.dtype = UNSIGNED[width(self.type)]
        self.size = width(self.type) // 8 * self.k
        if self.space == "const":
            self.space = "global"


def where(
    program: Program, memory: Any, shape: Shape, instruction: Instruction
) -> Callable[[Batch], Array]:
    """What gives the addresses of all lanes, as uint64."""
    if not isinstance(memory, Memory):
        raise malformed(instruction, "an address in brackets")
    base, offset = memory.base, memory.offset
    if isinstance(base, Place):
        if shape.space in ("param", base.space):
            shape.space = base.space
        elif shape.space != "generic":
            raise malformed(instruction, f"an address of .{shape.space}")
        if shape.space == "generic" and base.space != "global":
            offset += WINDOWS[base.space]
    slot = program.slot(Constant(0) if base is None else base, 64)
    if isinstance(base, Register) and base.width not in (32, 64):
        raise malformed(instruction, "an address of 32 or 64 bits")
    add = np.uint64(offset & ((1 << 64) - 1))
    narrow = isinstance(base, Register) and base.width == 32

    def addresses(b: Batch) -> Array:
        value = b.regs[slot]
        if narrow and offset < 0:
            value = value + np.uint32(offset & 0xFFFFFFFF)
            return np.asarray(value, np.uint64)
        found: Array = value.astype(np.uint64) + add if narrow or offset else value
        return found

    return addresses


Part = tuple[Bytes, Array | None, Array]


def parts(b: Batch, m: Mask, address: Array, size: int, space: str) -> Iterator[Part]:
    """The memories that the active lanes' addresses lie in, with which of the lanes (None: all) and where in each."""
    if (address & np.uint64(size - 1)).any():
        bad = int(np.nonzero(address & np.uint64(size - 1))[0][0])
        misaligned(b, int(address[bad]), size, space, lane(b, m, bad))
    if space == "generic":
        yield from _generic(b, m, address, size)
    elif space == "global":
        yield from _global(b, m, address, size, None)
    else:
        yield owned(b, m, address, size, getattr(b, space), None)


def misaligned(b: Batch, address: int, size: int, space: str, lane: int) -> NoReturn:
    """Raise the fault of an access that is not at a multiple of its size."""
    in_global = space in ("global", "generic") and address < WINDOWS["shared"]
    # an offset: addresses of buffers are others in every run
    at = b.window.nearest(address) if in_global else f"byte {address} of {space} memory"
    b.fault(f"misaligned for {size} bytes: {at}", lane)


def lane(b: Batch, m: Mask, active: int) -> int:
    return active if m.index is None else int(m.index[active])


def owned(b: Batch, m: Mask, address: Array, size: int, space: Space, chosen: Array | None) -> Part:
    at = address.astype(np.int64)
    if len(at) and (int(at.max()) > space.limit - size or int(at.min()) < 0):
        bad = int(np.nonzero((at > space.limit - size) | (at < 0))[0][0])
        who = lane(b, m, bad if chosen is None else int(chosen[bad]))
        b.fault(
            f"{size} bytes at {int(address[bad])} are out of bounds of {space.name}, {space.limit} bytes",
            who,
        )
    base = b.active(space.base, m)
    return space, chosen, at + (base if chosen is None else base[chosen])


def _global(b: Batch, m: Mask, address: Array, size: int, chosen: Array | None) -> Iterator[Part]:
    low, high = int(address.min()), int(address.max())
    region = b.window.find(low, high + size)
    if region is not None:
        yield region, chosen, (address - np.uint64(region.address)).astype(np.int64)
        return
    found, outside = b.window.split(address, size)
    if len(outside):
        bad = int(outside[0])
        who = lane(b, m, bad if chosen is None else int(chosen[bad]))
        b.fault(f"{size} bytes are out of bounds: {b.window.nearest(int(address[bad]))}", who)
    for one, index in found:
        inside = index if chosen is None else chosen[index]
        yield one, inside, (address[index] - np.uint64(one.address)).astype(np.int64)


def _generic(b: Batch, m: Mask, address: Array, size: int) -> Iterator[Part]:
    if int(address.max()) < WINDOWS["shared"]:
        yield from _global(b, m, address, size, None)
        return
    left = np.ones(len(address), bool)
    for name, start in WINDOWS.items():
        inside = (address >= np.uint64(start)) & (address < np.uint64(start + WINDOW_BYTES))
        if inside.any():
            chosen = np.nonzero(inside)[0]
            yield owned(b, m, address[chosen] - np.uint64(start), size, getattr(b, name), chosen)
            left &= ~inside
    if left.any():
        chosen = np.nonzero(left)[0]
        yield from _global(b, m, address[chosen], size, chosen)


def lanes_of(b: Batch, m: Mask, chosen: Array | None) -> Array:
    """The lanes of a part."""
    index = b.lane if m.index is None else m.index
    return index if chosen is None else index[chosen]


# ld


def load(program: Program, instruction: Instruction) -> Run:
    """ld: (v2, v4, v8 of) a type from any space."""
    shape = Shape(instruction)
    operands = instruction.operands
    if len(operands) not in (2, 3):
        raise malformed(instruction, "a destination and an address")
    targets = destinations(operands[0], shape, instruction)
    memory = operands[1]
    if reads_parameter(instruction):
        return _parameters(program, instruction, shape, targets, memory.base.offset + memory.offset)
    address = where(program, memory, shape, instruction)
    dtype, k, size, strong, narrow = shape.dtype, shape.k, shape.size, shape.strong, shape.narrow
    space, constant = shape.space, noncoherent.is_one(instruction)

    def run(b: Batch, m: Mask) -> None:
        flat = b.active(address(b), m)
        bad: Array | None = None
        values: Array | None = None
        which: Array | None = None
        for memory, chosen, at in parts(b, m, flat, size, space):
            lanes = lanes_of(b, m, chosen)
            fresh = note_read(b, memory, at, size, lanes, strong, narrow)
            if constant and isinstance(memory, Region):
                noncoherent.note(b, memory, at, size)
            got = memory.take(at, dtype, k)
            if chosen is None:
                values = got
            else:
                if values is None:
                    values = np.zeros((m.count, k) if k > 1 else m.count, dtype)
                values[chosen] = got
            if fresh is not None:
                bad = np.zeros(b.lanes, bool) if bad is None else bad
                bad[lanes[fresh]] = True
                known = partly.loaded(b, memory, at, size, k)
                if known is not None:
                    which = np.full((b.lanes, k), partly.ALL, np.uint8) if which is None else which
                    which[lanes] = known
        assert values is not None
        for i, (index, fit) in enumerate(targets):
            if index >= 0:
                column = values if k == 1 else np.ascontiguousarray(values[:, i])
                b.put_active(index, column if fit is None else fit(column), m)
                if bad is not None or b.poison:
                    b.set_poison(index, bad, m)
                if which is not None and fit is None and index in b.poison:
                    b.partly[index] = which[:, i]

    instruction.propagates = False
    if space == "shared" and not strong:
        part = (instruction, address, targets)
        instruction.kin = Kin(("ld", k, size), part, functools.partial(_loads, dtype, k, size))
    return run


def _places(b: Batch, parts: list[Any], size: int) -> Array | None:
    """Where several accesses of all lanes lie; None where they are not made at once."""
    if not several.fit(b, len(parts)):
        return None
    return several.placed(
        b, several.stacked(b, [address(b) for _, address, _ in parts], np.uint64), size
    )


def _loads(dtype: Any, k: int, size: int, parts: list[Any]) -> Callable[[Batch], bool]:
    """Several loads from shared memory of one type."""
    members = [member for member, *_ in parts]
    count = len(parts)

    def run(b: Batch) -> bool:
        at = _places(b, parts, size)
        if at is None or not several.shared_read(b, members, at, size):
            return False
        values = b.shared.take(at, dtype, k).reshape(count, b.lanes, k)
        columns = np.ascontiguousarray(values.transpose(0, 2, 1))
        for (_, _, targets), rows in zip(parts, columns, strict=True):
            for (index, fit), row in zip(targets, rows, strict=True):
                if index >= 0:
                    b.regs[index] = row if fit is None else fit(row)
        return True

    return run


def destinations(
    operand: Any, shape: Shape, instruction: Instruction
) -> list[tuple[int, Callable[[Array], Array] | None]]:
    """Of each element its register (-1 for `_`), and how it is widened to it."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != shape.k:
        raise malformed(instruction, f"{shape.k} destinations")
    found: list[tuple[int, Callable[[Array], Array] | None]] = []
    for item in items:
        if isinstance(item, Sink):
            found.append((-1, None))
        elif isinstance(item, Register) and item.width > 1:
            found.append((item.index, widen(shape.type, item, instruction)))
        else:
            raise malformed(instruction, "a register")
    return found


def widen(
    kind: str, register: Register, instruction: Instruction
) -> Callable[[Array], Array] | None:
    """How a value of a type is put into a register that may be wider; None for as it is."""
    bits = width(kind)
    if register.width == bits:
        return None
    if register.width < bits:
        raise malformed(instruction, f"a register of {bits} bits")
    to = UNSIGNED[register.width]
    if kind.startswith("s"):
        signed, wide = SIGNED[bits], SIGNED[register.width]
        return lambda v: v.view(signed).astype(wide).view(to)
    return lambda v: v.astype(to)


def reads_parameter(instruction: Instruction) -> bool:
    """Whether it is a load of a parameter of the entry."""
    return instruction.root in ("ld", "ldu") and any(
        isinstance(what, Memory) and isinstance(what.base, Parameter)
        for what in instruction.operands
    )


def _parameters(
    program: Program, instruction: Instruction, shape: Shape, targets: list[Any], offset: int
) -> Run:
    if offset < 0 or offset + shape.size > program.function.parameter_bytes or offset % shape.size:
        raise malformed(instruction, f"{shape.size} aligned bytes of the parameters")
    step = shape.size // shape.k
    slots = [
        program.slot(("param", offset + i * step, shape.dtype), step * 8) for i in range(shape.k)
    ]

    def run(b: Batch, m: Mask) -> None:
        for slot, (index, fit) in zip(slots, targets, strict=True):
            if index >= 0:
                value = b.regs[slot]
                b.put(index, value if fit is None else fit(value), m)
                if b.poison:
                    b.set_poison(index, None, m)

    instruction.propagates = False
    return run


# st


def store(program: Program, instruction: Instruction) -> Run:
    """st: (v2, v4, v8 of) a type to any space."""
    shape = Shape(instruction)
    operands = instruction.operands
    if len(operands) not in (2, 3):
        raise malformed(instruction, "an address and a source")
    if isinstance(operands[0], Memory) and isinstance(operands[0].base, Parameter):
        raise malformed(instruction, "an address that may be written")
    address = where(program, operands[0], shape, instruction)
    items = operands[1].items if isinstance(operands[1], Vector) else (operands[1],)
    if len(items) != shape.k:
        raise malformed(instruction, f"{shape.k} sources")
    bits = width(shape.type)
    sources = []
    for item in items:
        if (isinstance(item, Register) and item.width < bits) or not isinstance(
            item, (Register, Constant, Place)
        ):
            raise malformed(instruction, f"a source of {bits} bits")
        sources.append(program.slot(item, bits))
    registers = tuple(i.index for i in items if isinstance(i, Register))
    dtype, k, size, space = shape.dtype, shape.k, shape.size, shape.space

    def run(b: Batch, m: Mask) -> None:
        flat = b.active(address(b), m)
        columns = [b.active(b.regs[s], m).astype(dtype, copy=False) for s in sources]
        if k == 1:
            values = columns[0]
        else:
            values = np.empty((m.count, k), dtype)
            for i, column in enumerate(columns):
                values[:, i] = column
        bad = undefined(b, registers, m) if b.poison else None
        for memory, chosen, at in parts(b, m, flat, size, space):
            lanes = lanes_of(b, m, chosen)
            mine = values if chosen is None else values[chosen]
            worse = bad if bad is None or chosen is None else bad[chosen]
            if isinstance(memory, Region) and worse is not None and worse.any():
                b.visible(
                    "stores a value that was never defined", int(lanes[np.nonzero(worse)[0][0]])
                )
            if shape.strong:
                published(b, memory, lanes, shape)
            write(b, memory, at, size, lanes, mine, worse, strong=shape.strong, narrow=shape.narrow)

    instruction.propagates = False
    if space == "shared" and not shape.strong:
        part = (instruction, address, sources)
        instruction.kin = Kin(("st", k, size), part, functools.partial(_stores, dtype, k, size))
    if space == "global" and not shape.strong:
        part = (instruction, address, sources)
        join = functools.partial(_global_stores, dtype, k, size)
        instruction.kin = Kin(("st.global", k, size), part, join, guarded=True)
    return run


def _stores(dtype: Any, k: int, size: int, parts: list[Any]) -> Callable[[Batch], bool]:
    """Several stores to shared memory of one size."""
    members = [member for member, *_ in parts]

    def run(b: Batch) -> bool:
        at = _places(b, parts, size)
        if at is None or several.shared_write(b, members, at, size) is None:
            return False
        b.shared.put(at, _values(b, parts, dtype, k))
        return True

    return run


def _values(b: Batch, parts: list[Any], dtype: Any, k: int) -> Array:
    """What several stores write, as Bytes.put takes it."""
    values = np.empty((len(parts), b.lanes, k), dtype)
    for rows, (_, _, sources) in zip(values, parts, strict=True):
        for i, source in enumerate(sources):
            rows[:, i] = b.regs[source]
    values = values.reshape(-1, k)
    return values if k > 1 else values[:, 0]


def _global_stores(dtype: Any, k: int, size: int, parts: list[Any]) -> Callable[[Batch], bool]:
    """Several stores to one region of global memory, by all lanes."""
    members = [member for member, *_ in parts]
    count = len(parts)
    guards = [(one.guard.index, one.negated) for one in members if one.guard is not None]

    def run(b: Batch) -> bool:
        if not several.fit(b, count) or any((b.regs[g] == no).any() for g, no in guards):
            return False
        address = several.stacked(b, [address(b) for _, address, _ in parts], np.uint64)
        memory = several.region(b, address, size)
        if memory is None:
            return False
        at = (address - np.uint64(memory.address)).view(np.int64).ravel()
        if not several.global_write(b, members, memory, at, size):
            return False
        memory.put(at, _values(b, parts, dtype, k))
        b.window.version += 1
        return True

    return run


def published(b: Batch, memory: Bytes, lanes: Array, shape: Shape) -> None:
    """A strong write or an atomic: what its warp fenced before is now known to those that look."""
    warps = np.unique(b.warp[lanes])
    everywhere = isinstance(memory, Region) and not shape.narrow
    b.order.publish(warps, releases=shape.releases, everywhere=everywhere)


def undefined(b: Batch, registers: tuple[int, ...], m: Mask) -> Array | None:
    """Of the active lanes, which have an undefined value in one of the registers."""
    found: Array | None = None
    for r in registers:
        bad = b.poison.get(r)
        if bad is not None:
            found = bad if found is None else found | bad
    if found is None:
        return None
    active = b.active(found, m)
    return active if active.any() else None
