"""Instructions in which the lanes of a warp exchange values: shfl, vote, match, redux, elect, activemask.

A lane that does not take part has no value: what is read from it is undefined (a fault where it becomes visible), and a
lane that the member mask names but that takes part neither here nor has exited is a fault.

Source: PTX ISA, sections 9.7.9.6 (shfl.sync), 9.7.13.9 to 9.7.13.15 (vote, match, activemask, redux, elect).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.accesses import Run, malformed, unsupported
from contract.engines.ptx.batch import WARP, Batch, Mask
from contract.engines.ptx.decoded import (
    Constant,
    Instruction,
    Negated,
    Program,
    Register,
    Sink,
    Special,
    Two,
)

Array = NDArray[Any]
ALL = np.uint32(0xFFFFFFFF)
BITS = np.uint64(1) << np.arange(32, dtype=np.uint64)


def ballot(lanes: Array) -> Array:
    """A bit for each lane of a warp; the same 32 bits for all its lanes."""
    warps = (lanes.reshape(-1, 32) * BITS).sum(1).astype(np.uint32)
    return np.repeat(warps, 32)


def met(b: Batch, lanes: Array, masks: Array) -> None:
    """Lanes met at bar.warp.sync, those of each mask for themselves. masks: (lanes,) or one number."""
    every = np.broadcast_to(masks, b.lanes).astype(np.uint32)
    absent = (ballot(~b.exited) & ~every != 0) & lanes
    whole = np.unique(b.warp[lanes & ~absent])
    if len(whole):
        b.order.lanes(whole)
    for warp in np.unique(b.warp[absent]).tolist():
        row = slice(warp * WARP, warp * WARP + WARP)
        for mask in np.unique(every[row][absent[row]]):
            b.order.part(warp, np.nonzero(absent[row] & (every[row] == mask))[0])


def missing(b: Batch, m: Mask, members: Array) -> Array | None:
    """Of all lanes, the members that still run and are not active, as bits; None where there are none."""
    if m.count == b.lanes:
        return None
    absent: Array = members & ballot(~b.exited & ~m.lanes)
    absent = np.where(m.lanes, absent, 0)
    return absent if absent.any() else None


def check(b: Batch, m: Mask, members: Array) -> None:
    """Members must take part, and who takes part must be a member."""
    if m.count == b.lanes and (members == ALL).all():
        return
    absent = missing(b, m, members)
    if absent is not None:
        lane = int(np.nonzero(absent)[0][0])
        other = lane // 32 * 32 + int(absent[lane]).bit_length() - 1
        b.fault(f"its member mask names a lane that does not take part, {b.who(other)}", lane)
    stranger = m.lanes & ((members >> (b.lane % 32).astype(np.uint32)) & np.uint32(1) == 0)
    if stranger.any():
        b.fault(
            "executed by a lane that its member mask does not name", int(np.nonzero(stranger)[0][0])
        )


def operands(instruction: Instruction, sources: int) -> tuple[Any, Any, list[Any]]:
    """Destination, second destination or None, sources."""
    given = instruction.operands
    if len(given) != sources + 1:
        raise malformed(instruction, f"a destination and {sources} sources")
    first, second = (
        (given[0].first, given[0].second) if isinstance(given[0], Two) else (given[0], None)
    )
    for what, bits in ((first, None), (second, 1)):
        if not isinstance(what, (Register, Sink, type(None))):
            raise malformed(instruction, "a register to write")
        if isinstance(what, Register) and bits and what.width != bits:
            raise malformed(instruction, "a predicate as second destination")
    return first, second, list(given[1:])


def slot(program: Program, what: Any, bits: int, instruction: Instruction) -> int:
    held = isinstance(what, Register) and what.width == bits
    if not held and not isinstance(what, (Constant, Special)):
        raise malformed(instruction, f"a source of {bits} bits")
    return program.slot(what, bits)


def give(b: Batch, to: Any, value: Array, m: Mask, bad: Array | None = None) -> None:
    if isinstance(to, Register):
        b.put(to.index, value, m)
        if bad is not None or b.poison:
            b.set_poison(to.index, bad, m)


def shfl(program: Program, instruction: Instruction) -> Run:
    """shfl.sync.up, .down, .bfly, .idx."""
    parts = instruction.parts
    if len(parts) != 3 or parts[0] != "sync" or parts[2] != "b32" or parts[1] not in PARTNERS:
        raise unsupported(instruction)
    to, second, given = operands(instruction, 4)
    value, by, clamp, member = (slot(program, s, 32, instruction) for s in given)
    partner = PARTNERS[parts[1]]

    def run(b: Batch, m: Mask) -> None:
        check(b, m, b.wide(member))
        at, inside = _partners(b, partner, b.regs[by], b.regs[clamp])
        bad = None
        if m.count < b.lanes:
            bad = ~m.lanes[at]
        if value in b.poison:
            worse = b.poison[value][at]
            bad = worse if bad is None else bad | worse
        if bad is not None and not bad.any():
            bad = None
        result = b.wide(value)[at]
        give(b, second, inside, m)
        give(b, to, result, m, bad)

    instruction.propagates = False
    return run


Partner = Callable[[Array, Array, Array, Array, Array], tuple[Array, Array]]


def _partners(b: Batch, partner: Partner, by: Array, clamp: Array) -> tuple[Array, Array]:
    """Of each lane the lane it reads from, itself where that lies outside its segment; whether it lies inside."""
    key = (partner, int(by[0]), int(clamp[0])) if len(by) == len(clamp) == 1 else None
    if key in b.exchanges:
        return b.exchanges[key]
    lane = b.lane % 32
    c = clamp.astype(np.int64)
    segment = (c >> 8) & 31
    low = lane & segment
    # up compares with the least lane of the segment, the others with its greatest
    bound = low | (c & 31 & ~segment)
    at, inside = partner(lane, by.astype(np.int64) & 31, segment, low, bound)
    inside = np.broadcast_to(inside, (b.lanes,))
    found = np.where(inside, at, lane) + (b.lane - lane), inside
    if key is not None:
        b.exchanges[key] = found
    return found


def _up(lane: Array, by: Array, segment: Array, low: Array, bound: Array) -> tuple[Array, Array]:
    return lane - by, lane - by >= bound


def _down(lane: Array, by: Array, segment: Array, low: Array, bound: Array) -> tuple[Array, Array]:
    return lane + by, lane + by <= bound


def _bfly(lane: Array, by: Array, segment: Array, low: Array, bound: Array) -> tuple[Array, Array]:
    return lane ^ by, lane ^ by <= bound


def _idx(lane: Array, by: Array, segment: Array, low: Array, bound: Array) -> tuple[Array, Array]:
    at = low | (by & ~segment)
    return at, at <= bound


PARTNERS: dict[str, Partner] = {"up": _up, "down": _down, "bfly": _bfly, "idx": _idx}


def any_poison(b: Batch, m: Mask, index: int) -> Array | None:
    """Lanes of warps in which an active lane's value is undefined."""
    bad = b.poison.get(index)
    if bad is None:
        return None
    spread: Array = np.repeat((bad & m.lanes).reshape(-1, 32).any(1), 32)
    return spread if spread.any() else None


def vote(program: Program, instruction: Instruction) -> Run:
    """vote.sync.all, .any, .uni (to a predicate) and .ballot (to 32 bits)."""
    parts = instruction.parts
    modes = {"all": "pred", "any": "pred", "uni": "pred", "ballot": "b32"}
    if len(parts) != 3 or parts[0] != "sync" or modes.get(parts[1]) != parts[2]:
        raise unsupported(instruction)
    to, second, (what, members) = operands(instruction, 2)
    negated = isinstance(what, Negated)
    asked = slot(program, what.of if negated else what, 1, instruction)
    member = slot(program, members, 32, instruction)
    if (
        second is not None
        or not isinstance(to, Register)
        or to.width != (1 if parts[2] == "pred" else 32)
    ):
        raise malformed(instruction, "a destination of its type")
    mode = parts[1]

    def run(b: Batch, m: Mask) -> None:
        mask = b.wide(member)
        check(b, m, mask)
        yes = ballot((b.wide(asked) ^ negated) & m.lanes) & mask
        everyone = ballot(m.lanes) & mask
        answers: dict[str, Callable[[], Array]] = {
            "ballot": lambda: yes,
            "any": lambda: yes != 0,
            "all": lambda: yes == everyone,
            "uni": lambda: (yes == everyone) | (yes == 0),
        }
        give(b, to, answers[mode](), m, any_poison(b, m, asked))

    instruction.propagates = False
    return run


def activemask(program: Program, instruction: Instruction) -> Run:
    """activemask.b32: the lanes that execute this together; other schedules may give other ones."""
    if instruction.parts != ["b32"]:
        raise unsupported(instruction)
    to, _, _ = operands(instruction, 0)
    return lambda b, m: give(b, to, ballot(m.lanes), m)


def match(program: Program, instruction: Instruction) -> Run:
    """match.any.sync and match.all.sync, of 32 or 64 bits."""
    parts = instruction.parts
    if (
        len(parts) != 3
        or parts[0] not in ("any", "all")
        or parts[1] != "sync"
        or parts[2] not in ("b32", "b64")
    ):
        raise unsupported(instruction)
    to, second, (what, members) = operands(instruction, 2)
    value = slot(program, what, int(parts[2][1:]), instruction)
    member = slot(program, members, 32, instruction)
    every = parts[0] == "all"

    def run(b: Batch, m: Mask) -> None:
        mask = b.wide(member)
        check(b, m, mask)
        rows = b.wide(value).reshape(-1, 32)
        equal = (rows[:, :, None] == rows[:, None, :]) & m.lanes.reshape(-1, 1, 32)
        same = (equal * BITS).sum(2).astype(np.uint32).ravel() & mask
        bad = any_poison(b, m, value)
        if every:
            agreed = same == (ballot(m.lanes) & mask)
            give(b, second, agreed, m, bad)
            same = np.where(agreed, same, np.uint32(0))
        give(b, to, same, m, bad)

    instruction.propagates = False
    return run


def redux(program: Program, instruction: Instruction) -> Run:
    """redux.sync: the sum, least, greatest, and, or, xor of the members' 32 bits."""
    parts = instruction.parts
    known: dict[str, tuple[str, ...]] = {
        "add": ("u32", "s32"),
        "min": ("u32", "s32"),
        "max": ("u32", "s32"),
    }
    known |= dict.fromkeys(("and", "or", "xor"), ("b32",))
    if len(parts) != 3 or parts[0] != "sync" or parts[2] not in known.get(parts[1], ()):
        raise unsupported(instruction)
    to, _, (what, members) = operands(instruction, 2)
    value, member = slot(program, what, 32, instruction), slot(program, members, 32, instruction)
    dtype = np.int32 if parts[2] == "s32" else np.uint32
    info = np.iinfo(dtype)
    call, neutral = {
        "add": (np.add, 0),
        "min": (np.minimum, info.max),
        "max": (np.maximum, info.min),
        "and": (np.bitwise_and, 0xFFFFFFFF),
        "or": (np.bitwise_or, 0),
        "xor": (np.bitwise_xor, 0),
    }[parts[1]]

    def run(b: Batch, m: Mask) -> None:
        mask = b.wide(member)
        check(b, m, mask)
        result = np.zeros(b.lanes, np.uint32)
        for group in np.unique(mask[m.lanes]):
            # lanes of one warp may form several groups, each with its own mask
            mine = m.lanes & (mask == group)
            kept = np.where(mine, b.wide(value).view(dtype), dtype(neutral)).reshape(-1, 32)
            total = np.repeat(call.reduce(kept, axis=1, dtype=dtype).view(np.uint32), 32)
            result = np.where(mine, total, result)
        give(b, to, result, m, any_poison(b, m, value))

    instruction.propagates = False
    return run


def elect(program: Program, instruction: Instruction) -> Run:
    """elect.sync: the least member, and whether that is the lane itself (which one is left open by the ISA)."""
    if instruction.parts != ["sync"]:
        raise unsupported(instruction)
    to, second, (members,) = operands(instruction, 1)
    member = slot(program, members, 32, instruction)

    def run(b: Batch, m: Mask) -> None:
        mask = b.wide(member)
        check(b, m, mask)
        taking = ballot(m.lanes) & mask
        lowest = taking & (~taking + np.uint32(1))
        leader = np.bitwise_count(lowest - np.uint32(1)).astype(np.uint32)
        give(b, to, leader, m)
        give(b, second, leader == b.lane % 32, m)

    return run
