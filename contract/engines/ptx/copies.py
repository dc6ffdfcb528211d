"""cp.async: copies from global to shared memory that end when their lane waits for them.

What is copied is read at once; until the wait the bytes in shared memory are in flight, and touching them is a fault.
After it they are visible to the lane that waited, and to other warps after a barrier.

Source: PTX ISA, section 9.7.9.25 (asynchronous copies: cp.async, commit_group, wait_group, wait_all).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import accesses, several
from contract.engines.ptx.accesses import (
    Run,
    Shape,
    malformed,
    unsupported,
    where,
)
from contract.engines.ptx.batch import WARP, Batch, Mask
from contract.engines.ptx.decoded import Constant, Instruction, Kin, Memory, Program, Register
from contract.engines.ptx.noting import note_read, note_write
from contract.engines.ptx.races import SharedShadow

Array = NDArray[Any]
HINTS = frozenset(["L2::64B", "L2::128B", "L2::256B", "L2::cache_hint"])


@dataclass(slots=True)
class Flight:
    """Copies that one execution of a cp.async started: lanes, their groups, positions in shared memory, bytes.

    Attributes:
        common: the group, where all lanes of the batch are among them and it is the same for all.
    """

    lanes: Array
    group: Array
    at: Array
    data: Array
    common: int | None = None


class Copies:
    """The copies in flight of a batch; of each lane how many groups it has committed.

    Attributes:
        common: that number, as long as it is the same for all lanes.
    """

    def __init__(self, lanes: int) -> None:
        self.committed = np.zeros(lanes, np.int64)
        self.common: int | None = 0
        self.flights: list[Flight] = []

    def commit(self, b: Batch, m: Mask) -> None:
        """End the present group of the active lanes."""
        self.committed += m.lanes
        whole = m.count == b.lanes and self.common is not None
        self.common = self.common + 1 if whole and self.common is not None else None

    def wait(self, b: Batch, m: Mask, left: int | None) -> None:
        """End the copies of all but the latest `left` groups; of all copies, committed or not, for None."""
        remaining = []
        ended = None if self.common is None or left is None else self.common - left
        for flight in self.flights:
            if (
                m.count == b.lanes
                and flight.common is not None
                and (left is None or ended is not None)
            ):
                if ended is None or flight.common < ended:
                    self._land(b, flight.lanes, flight.at, flight.data)
                else:
                    remaining.append(flight)
                continue
            done = m.lanes[flight.lanes]
            if left is not None:
                done = done & (flight.group < self.committed[flight.lanes] - left)
            if done.any():
                self._land(b, flight.lanes[done], flight.at[done], flight.data[done])
            if not done.all():
                keep = ~done
                remaining.append(
                    Flight(
                        flight.lanes[keep], flight.group[keep], flight.at[keep], flight.data[keep]
                    )
                )
        self.flights = remaining

    def _land(self, b: Batch, lanes: Array, at: Array, data: Array) -> None:
        shared, size = b.shared, data.shape[1]
        g, each = shared.granules(at, size)
        assert shared.flight is not None
        shared.flight[g] = False
        by = lanes if each == 1 else np.repeat(lanes, each)
        assert isinstance(shared.shadow, SharedShadow)
        shared.shadow.mark_write(g, b.local_warp[by], by % WARP, b.order.tick(b.now))
        shared.put(at, data)


def of(b: Batch) -> Copies:
    if b.copies is None:
        b.copies = Copies(b.lanes)
    return b.copies


def grain(program: Program, instruction: Instruction) -> None:
    """A copy touches this many bytes of either memory."""
    size = instruction.operands[2] if len(instruction.operands) > 2 else None
    if isinstance(size, Constant):
        for space in ("global", "shared"):
            program.granules[space] = min(program.granules[space], size.bits)
        # a copy of fewer bytes reads any number of them
        if len(instruction.operands) > 3 and not isinstance(instruction.operands[3], Constant):
            program.granules["global"] = min(program.granules["global"], 4)


def cp(program: Program, instruction: Instruction) -> Run:
    """cp.async.ca, .cg, .commit_group, .wait_group, .wait_all."""
    parts = instruction.parts
    program.uses_copies = True
    instruction.propagates = False
    if parts == ["async", "commit_group"]:
        return _commit
    if parts == ["async", "wait_all"]:
        return lambda b, m: of(b).wait(b, m, None)
    if parts == ["async", "wait_group"]:
        if len(instruction.operands) != 1 or not isinstance(instruction.operands[0], Constant):
            raise malformed(instruction, "a number of groups")
        left = instruction.operands[0].bits
        return lambda b, m: of(b).wait(b, m, left)
    return _copy(program, instruction)


def _commit(b: Batch, m: Mask) -> None:
    of(b).commit(b, m)


def _copy(program: Program, instruction: Instruction) -> Run:
    plain = [p for p in instruction.parts if p not in HINTS]
    if plain[:1] != ["async"] or plain[1:2] not in (["ca"], ["cg"]):
        raise unsupported(instruction)
    if plain[2:] not in (["shared", "global"], ["shared::cta", "global"]):
        raise unsupported(instruction)
    operands = instruction.operands
    hinted = "L2::cache_hint" in instruction.parts
    if not 3 <= len(operands) - hinted <= 4 or not isinstance(operands[2], Constant):
        raise malformed(instruction, "two addresses and a size")
    size = operands[2].bits
    if size not in ((16,) if plain[1] == "cg" else (4, 8, 16)):
        raise malformed(instruction, "a size of 4, 8 or 16 bytes (16 with .cg)")
    to = where(program, operands[0], _shape("shared", instruction), instruction)
    source = where(program, operands[1], _shape("global", instruction), instruction)
    given, ignored = None, None
    if len(operands) - hinted == 4:
        what = operands[3]
        if isinstance(what, Register) and what.width == 1:
            ignored = what.index
        elif isinstance(what, (Register, Constant)) and getattr(what, "width", 32) in (0, 32):
            given = program.slot(what, 32)
        else:
            raise malformed(instruction, "a size of the source, or a predicate")
    if isinstance(operands[3] if given is not None else None, Register):
        instruction.observed |= {operands[3].index}

    def run(b: Batch, m: Mask) -> None:
        lanes = b.lane if m.index is None else m.index
        sizes = np.full(m.count, size, np.int64)
        if given is not None:
            sizes = b.active(b.regs[given], m).astype(np.int64)
            if (sizes > size).any():
                b.fault(
                    f"copies more than {size} bytes", int(lanes[np.nonzero(sizes > size)[0][0]])
                )
        if ignored is not None:
            sizes = np.where(b.active(b.regs[ignored], m), 0, sizes)
        data, bad = _fetched(b, m, b.active(source(b), m), sizes, size)
        address = b.active(to(b), m)
        (_, _, at), *_ = accesses.parts(b, m, address, size, "shared")
        every = np.ones(len(at), bool)
        note_write(b, b.shared, at, size, lanes, lambda: every, undefined=bad)
        g, _ = b.shared.granules(at, size)
        assert b.shared.flight is not None
        b.shared.flight[g] = True
        state = of(b)
        state.flights.append(Flight(np.asarray(lanes), state.committed[lanes], at, data))

    if ignored is None:
        part = (instruction, to, source, given)
        instruction.kin = Kin(("cp", size), part, functools.partial(_joined, size))
    return run


def _joined(size: int, parts: list[Any]) -> Callable[[Batch], bool]:
    """Several copies of so many bytes, that each copy all of them or nothing but zeros."""
    members = [member for member, *_ in parts]
    count = len(parts)

    def run(b: Batch) -> bool:
        if not several.fit(b, count):
            return False
        copied = _copied(b, [slot for *_, slot in parts], size)
        if copied is None:
            return False
        at = several.placed(
            b, several.stacked(b, [to(b) for _, to, _, _ in parts], np.uint64), size
        )
        if at is None:
            return False
        memory, place = None, None
        if copied:
            address = several.stacked(b, [parts[i][2](b) for i in copied], np.uint64)
            memory = several.region(b, address, size)
            if memory is None:
                return False
            place = (address - np.uint64(memory.address)).view(np.int64).ravel()
            if not several.readable(b, memory, place, size):
                return False
        g = several.shared_write(b, members, at, size)
        if g is None:
            return False
        data = np.zeros((0 if len(copied) == count else count, b.lanes, size), np.uint8)
        if memory is not None and place is not None:
            several.global_read(b, [members[i] for i in copied], memory, place, size)
            taken = memory.take(place, np.uint8, size).reshape(-1, b.lanes, size)
            if len(copied) == count:
                data = taken
            else:
                data[copied] = taken
        assert b.shared.flight is not None
        b.shared.flight[g] = True
        state = of(b)
        lanes = several.lanes(b, count)
        flight = Flight(lanes, state.committed[lanes], at, data.reshape(-1, size), state.common)
        state.flights.append(flight)
        return True

    return run


def _copied(b: Batch, slots: list[int | None], size: int) -> list[int] | None:
    """Of copies whose sizes lie in slots (None: all of it) those that copy all of it in all lanes.

    None where some lane copies less, or others nothing.
    """
    everything = np.array([size], np.uint32)
    given = [everything if slot is None else b.regs[slot] for slot in slots]
    sizes = several.stacked(b, given, np.uint32)
    whole = (sizes == size).all(1)
    if sizes[~whole].any():
        return None
    found: list[int] = np.nonzero(whole)[0].tolist()
    return found


def _shape(space: str, instruction: Instruction) -> Shape:
    return Shape(Instruction(f"ld.{space}.b8", (), None, False, instruction.line, instruction.text))


def _fetched(
    b: Batch, m: Mask, address: Array, sizes: Array, size: int
) -> tuple[Array, Array | None]:
    """The bytes to be copied, zeros after the source's own, and which copies are of what is not defined."""
    lanes = b.lane if m.index is None else m.index
    off = address & np.uint64(size - 1)
    if ((off != 0) & (sizes > 0)).any():
        bad = int(np.nonzero((off != 0) & (sizes > 0))[0][0])
        accesses.misaligned(b, int(address[bad]), size, "global", int(lanes[bad]))
    data = np.zeros((m.count, size), np.uint8)
    without: Array | None = None
    for count in np.unique(sizes[sizes > 0]):
        mine = np.nonzero(sizes == count)[0]
        whole = None if len(mine) == m.count else mine
        for memory, chosen, at in accesses._global(b, m, address[mine], int(count), whole):
            rows = slice(None) if chosen is None else chosen
            got = (
                memory.take(at, np.uint8, size)
                if count == size
                else memory.view[at[:, None] + np.arange(count)]
            )
            fresh = note_read(b, memory, at, int(count), lanes[rows], False)
            if fresh is not None:
                without = np.zeros(m.count, bool) if without is None else without
                without[rows] |= fresh
            data[rows, : int(count)] = got
    return data, without


__all__ = ["Copies", "Memory", "cp"]
