"""Where lanes go next: branches, exits, barriers, and waiting for the other lanes of a warp.

Lanes with the lowest block of instructions go first, which brings diverged lanes together where compilers mean them to
meet. A block that needs more lanes of a warp than have come sets those that have aside until the others arrive; where
nothing else can run, that is a fault.

Source: PTX ISA, sections 9.7.12 (control flow), 9.7.13.1 (bar, barrier), 9.7.13.2 (bar.warp.sync): an arrival counts
for the whole warp, and bar.sync is barrier.sync.aligned, which all threads of the warp must execute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.accesses import Run, malformed, unsupported
from contract.engines.ptx.batch import WARP, Batch, Mask
from contract.engines.ptx.decoded import Block, Constant, Instruction, Negated, Program, Register
from contract.engines.ptx.warp import ballot, met, missing

Array = NDArray[Any]
LAST_BARRIER = 15

# meeting


def meeting(program: Program, block: Block, first: Instruction) -> None:
    """Say what a block that begins with a warp-wide instruction asks of the lanes that come to it."""
    block.gather = gatherer(program, block, first)


def gatherer(
    program: Program, block: Block, first: Instruction
) -> Callable[[Batch, Mask], Array | None] | None:
    """A function that gives the lanes that must wait for others; None for an instruction that asks nothing."""
    root, parts = first.root, first.parts
    if root in ("shfl", "vote", "match", "redux", "elect") or (
        root == "bar" and parts[:2] == ["warp", "sync"]
    ):
        what = first.operands[-1] if first.operands else None
        if not isinstance(what, (Register, Constant)):
            raise malformed(first, "a member mask")
        slot = program.slot(what, 32)
        block.members = -1 if first.guard is not None else slot

        def members(b: Batch, m: Mask) -> Array | None:
            absent = missing(b, m, b.wide(slot))
            if absent is None:
                return None
            # the whole warp waits, so that its lanes stay together
            return np.repeat((absent != 0).reshape(-1, WARP).any(1), WARP) & m.lanes

        return members
    if root == "barrier" and "aligned" not in parts:
        return None

    def whole(b: Batch, m: Mask) -> Array | None:
        apart = m.lanes & (ballot(~b.exited & ~m.lanes) != 0)
        return apart if apart.any() else None

    return whole


# what ends a block


def end(program: Program, instruction: Instruction, number: int) -> Run:
    """What sends lanes on from the end of a block."""
    root = instruction.root
    if root == "bra":
        if instruction.parts not in ([], ["uni"]):
            raise unsupported(instruction)
        return _branch(instruction, number)
    if root == "brx":
        return _indexed(program, instruction, number)
    if root in ("ret", "exit"):
        return _guarded(instruction, number, lambda b, m: b.schedule.stop(m))
    if root == "trap":
        return _guarded(instruction, number, _trap)
    return _barrier(program, instruction, number)


def _trap(b: Batch, m: Mask) -> None:
    b.fault("trap", int(np.argmax(m.lanes)))


def _branch(instruction: Instruction, number: int) -> Run:
    (target,) = instruction.targets
    if instruction.guard is None:
        return lambda b, m: b.schedule.go(target, m.lanes, m.count)
    return _guarded(instruction, number, lambda b, m: b.schedule.go(target, m.lanes, m.count))


def _guarded(instruction: Instruction, number: int, run: Run) -> Run:
    """Lanes whose guard holds do it, the others go on behind it."""
    if instruction.guard is None:
        return run
    guard, negated = instruction.guard.index, instruction.negated

    def conditional(b: Batch, m: Mask) -> None:
        taken = b.narrow(m, b.regs[guard], negated)
        if taken is None:
            b.schedule.go(number + 1, m.lanes, m.count)
            return
        if taken is not m:
            b.schedule.go(number + 1, m.lanes & ~taken.lanes, m.count - taken.count)
        run(b, taken)

    return conditional


def _indexed(program: Program, instruction: Instruction, number: int) -> Run:
    what = instruction.operands[0]
    if instruction.parts not in (["idx"], ["idx", "uni"]) or not isinstance(what, Register):
        raise unsupported(instruction)
    index, targets = what.index, instruction.targets

    def run(b: Batch, m: Mask) -> None:
        chosen = b.wide(index)
        if (chosen[m.lanes] >= len(targets)).any():
            b.fault(
                "an index outside the list of targets",
                int(np.argmax(m.lanes & (chosen >= len(targets)))),
            )
        for i, target in enumerate(targets):
            going = m.lanes & (chosen == i)
            count = int(np.count_nonzero(going))
            if count:
                b.schedule.go(target, going, count)

    return _guarded(instruction, number, run)


def _barrier(program: Program, instruction: Instruction, number: int) -> Run:
    parts = [p for p in instruction.parts if p not in ("cta", "aligned")]
    operands = list(instruction.operands)
    if parts == ["warp", "sync"]:
        slot = program.slot(operands[0], 32)

        def together(b: Batch, m: Mask) -> None:
            met(b, m.lanes, b.wide(slot))
            b.schedule.go(number + 1, m.lanes, m.count)

        return _guarded(instruction, number, together)
    kind = parts[0] if parts else ""
    modes: dict[str, list[list[str]]] = {
        "sync": [[]],
        "arrive": [[]],
        "red": [["popc", "u32"], ["and", "pred"], ["or", "pred"]],
    }
    if kind not in modes or parts[1:] not in modes[kind]:
        raise unsupported(instruction)
    target = operands.pop(0) if kind == "red" and operands else None
    asked = operands.pop() if kind == "red" and operands else None
    if not operands or len(operands) > 2 or (kind == "arrive" and len(operands) != 2):
        raise malformed(instruction, "a barrier and a number of threads")
    if any(not isinstance(o, (Register, Constant)) for o in operands):
        raise malformed(instruction, "a barrier and a number of threads")
    name, *count = (program.slot(o, 32) for o in operands)
    predicate = None
    if kind == "red":
        source = asked.of if isinstance(asked, Negated) else asked
        wanted = 32 if parts[1] == "popc" else 1
        if not isinstance(source, Register) or source.width != 1:
            raise malformed(instruction, "a predicate")
        if not isinstance(target, Register) or target.width != wanted:
            raise malformed(instruction, "a register to write")
        predicate = (source.index, isinstance(asked, Negated), target.index, parts[1])
    aligned = instruction.root == "bar" or "aligned" in instruction.parts

    plain = kind == "sync" and not count

    def run(b: Batch, m: Mask) -> None:
        if plain and m.count == b.lanes and len(b.regs[name]) == 1:
            held = b.schedule.barriers.get(int(b.regs[name][0]))
            if b.regs[name][0] <= LAST_BARRIER and (held is None or not held.arrived.any()):
                # all there are come at once
                b.order.everyone(np.ones(b.blocks, bool))
                b.schedule.go(number + 1, m.lanes, m.count)
                return
        _aligned(b, m, aligned)
        numbers = b.wide(name)
        threads = b.wide(count[0]) if count else None
        _arrivals(b, m, instruction, number, kind, numbers, threads, predicate)

    return _guarded(instruction, number, run)


def _aligned(b: Batch, m: Mask, aligned: bool) -> None:
    if not aligned or m.full:
        return
    apart = m.lanes & (ballot(~b.exited & ~m.lanes) != 0)
    if apart.any():
        b.fault("divergence: executed by some lanes of a warp only", int(np.argmax(apart)))


def _arrivals(
    b: Batch,
    m: Mask,
    instruction: Instruction,
    number: int,
    kind: str,
    numbers: Array,
    threads: Array | None,
    predicate: tuple[int, bool, int, str] | None,
) -> None:
    for name in np.unique(numbers[m.lanes]):
        lanes = m.lanes & (numbers == name)
        mine = Mask(lanes, int(np.count_nonzero(lanes)), False)
        if name > LAST_BARRIER:
            b.fault(f"barrier {name}: a block has 16", int(np.argmax(lanes)))
        expected = np.zeros(b.blocks, np.int64)
        if threads is not None:
            wrong = lanes & ((threads % WARP != 0) | (threads == 0) | (threads > b.padded))
            if wrong.any():
                b.fault(
                    "a number of threads that is no multiple of 32 within the block",
                    int(np.argmax(wrong)),
                )
            expected[b.owner[lanes]] = threads[lanes]
        if threads is not None and predicate is None and bool((threads[lanes] == WARP).all()):
            # each warp completes it by itself
            b.order.lanes(np.unique(b.warp[lanes]))
            b.schedule.go(number + 1, lanes, mine.count)
            continue
        asked = None
        if predicate is not None:
            source, negated, target, mode = predicate
            asked = b.wide(source) ^ negated
            b.schedule.barrier(int(name)).reductions.append((lanes, mode, target))
        after = None if kind == "arrive" else number + 1
        b.schedule.arrive(int(name), mine, expected, after, instruction, asked)
        if kind == "arrive":
            b.schedule.go(number + 1, lanes, mine.count)
    b.schedule.complete()
