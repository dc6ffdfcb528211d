"""From decoded instructions to what executes them: what the machine does itself, everything else from the table.

Source: PTX ISA, section 9.7 (Instructions); the functions of registers are contract.engines.ptx.table's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import (
    accesses,
    atomics,
    control,
    copies,
    joins,
    matrices,
    moves,
    table,
    warp,
)
from contract.engines.ptx.accesses import Run, malformed, unsupported
from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import Instruction, Program
from contract.engines.ptx.faults import Unsupported
from contract.engines.ptx.flow import flatten
from contract.engines.ptx.moves import Into, Taken, results, source
from contract.engines.ptx.opcode import loud

Array = NDArray[Any]
# they change nothing that a result depends on
NOTHING = frozenset(
    ["prefetch", "prefetchu", "discard", "nanosleep", "pmevent", "applypriority", "print"]
)


def bind(program: Program) -> None:
    """Give every instruction what runs it, and the program what must be known of all of them."""
    program.granules = dict.fromkeys(("global", "shared", "local"), 16)
    for block in program.blocks:
        for instruction in block.body:
            instruction.run = guarded(instruction, one(program, instruction))
        if block.end is not None:
            block.end.run = control.end(program, block.end, block.number)
        if block.meets:
            first = block.body[0] if block.body else block.end
            assert first is not None
            control.meeting(program, block, first)
    _tally(program)


def _tally(program: Program) -> None:
    """Which opcodes stand where, for what a launch has executed."""
    of_blocks = [
        [
            instruction
            for instruction in [*block.body, *([block.end] if block.end else [])]
            # but for the exit that the decoder adds
            if instruction.line != program.function.line or not instruction.text.startswith("(")
        ]
        for block in program.blocks
    ]
    every = [instruction for own in of_blocks for instruction in own]
    program.opcodes = tuple(sorted({one.opcode for one in every}))
    number = {opcode: i for i, opcode in enumerate(program.opcodes)}
    program.tally = np.zeros((len(program.blocks), len(number)), np.int64)
    for row, own in zip(program.tally, of_blocks, strict=True):
        for one in own:
            row[number[one.opcode]] += 1
    program.approximate = frozenset(one.opcode for one in every if one.approximate)
    program.atomics = frozenset(
        one.opcode
        for one in every
        if one.root in ("atom", "red") and ".add" in one.opcode and "f" in one.parts[-1]
    )


def guarded(instruction: Instruction, run: Run) -> Run:
    if instruction.guard is None:
        return run
    if instruction.kin is not None and not instruction.kin.guarded:
        instruction.kin = None
    guard, negated = instruction.guard.index, instruction.negated

    def conditional(b: Batch, m: Mask) -> None:
        narrowed = b.narrow(m, b.regs[guard], negated)
        if narrowed is not None:
            run(b, narrowed)

    return conditional


def one(program: Program, instruction: Instruction) -> Run:
    """What runs one instruction on the lanes of a mask."""
    root = instruction.root
    if root in NOTHING:
        return lambda b, m: None
    maker = MAKERS.get(root)
    if root == "mov" and instruction.opcode.startswith("movmatrix"):
        maker = matrices.movmatrix
    if maker is None:
        return calculate(program, instruction)
    made = maker(program, instruction)
    _grain(program, instruction)
    return made


def _grain(program: Program, instruction: Instruction) -> None:
    if instruction.root not in ("ld", "ldu", "st", "atom", "red"):
        if instruction.root == "cp":
            copies.grain(program, instruction)
        return
    if accesses.reads_parameter(instruction):
        return
    shape = accesses.Shape(instruction, atomics.OPERATIONS | {"noftz"})
    spaces = list(program.granules) if shape.space in ("generic", "param") else [shape.space]
    for space in spaces:
        program.granules[space] = min(program.granules[space], shape.size)


# functions of registers


def calculate(program: Program, instruction: Instruction) -> Run:
    """An instruction of the table."""
    try:
        semantics = table.find(instruction.opcode)
    except Unsupported as error:
        raise Unsupported(f"line {instruction.line}: {error}") from None
    instruction.approximate = semantics.approximate
    reads, writes = semantics.carry
    operands = instruction.operands
    sources = flatten(operands[1:])
    wanted = len(semantics.sources) - reads
    if not operands or len(sources) != wanted:
        raise malformed(instruction, f"{wanted} sources")
    taken = [
        source(program, what, kind, instruction)
        for what, kind in zip(sources, semantics.sources, strict=False)
    ]
    into = results(operands[0], semantics, instruction)
    instruction.kin = joins.kin_of(instruction, semantics, taken, into)
    # the machine runs all of a batch without warnings
    call: Callable[..., Any] = loud(semantics.call)
    if semantics.approximate:
        plain = call

        def skewed(b: Batch, *values: Array, **options: Any) -> Any:
            return plain(*values, skew=b.skew, **options)

        return _general(taken, into, skewed, semantics.warp, semantics.carry)
    if semantics.warp or reads or writes or len(into) != 1 or any(fit for _, fit in taken):
        return _general(
            taken, into, lambda b, *values, **k: call(*values, **k), semantics.warp, semantics.carry
        )
    if len(semantics.results) > 1:
        # setp with one destination
        return _simple([slot for slot, _ in taken], into[0], lambda *values: call(*values)[0])
    return _simple([slot for slot, _ in taken], into[0], call)


def _simple(slots: list[int], into: Into, call: Callable[..., Any]) -> Run:
    """One result of sources that are held as they are read: nearly all there are."""
    index, fit = into
    if fit is not None:
        plain, widened = call, fit
        call = lambda *values: widened(
            plain(*values)
        )  # the same name, so that the three below stay short
    if len(slots) == 1:
        (first,) = slots
        return lambda b, m: b.put(index, call(b.regs[first]), m)
    if len(slots) == 2:
        first, second = slots
        return lambda b, m: b.put(index, call(b.regs[first], b.regs[second]), m)
    if len(slots) == 3:
        first, second, third = slots
        return lambda b, m: b.put(index, call(b.regs[first], b.regs[second], b.regs[third]), m)
    return lambda b, m: b.put(index, call(*[b.regs[s] for s in slots]), m)


def _general(
    taken: list[Taken],
    into: list[Into],
    call: Callable[..., Any],
    by_warp: bool,
    carry: tuple[bool, bool],
) -> Run:
    reads, writes = carry

    def run(b: Batch, m: Mask) -> None:
        values = [b.regs[s] if fit is None else fit(b.regs[s]) for s, fit in taken]
        options = {}
        if by_warp:
            values = [
                (v if len(v) == b.lanes else np.broadcast_to(v, (b.lanes,))).reshape(-1, 32)
                for v in values
            ]
            options["active"] = m.lanes.reshape(-1, 32)
        if reads:
            values.append(b.carry)
        found = call(b, *values, **options)
        found = found if isinstance(found, tuple) else (found,)
        if writes:
            b.carry = found[-1] if m.full else np.where(m.lanes, found[-1], b.carry)
        for value, (index, fit) in zip(found, into, strict=False):
            if index >= 0:
                value = value.reshape(-1) if by_warp else value
                b.put(index, value if fit is None else fit(value), m)

    return run


def fence(program: Program, instruction: Instruction) -> Run:
    """membar, fence: what its warp knows of writes may be published by its next strong access."""
    if (
        "proxy" in instruction.opcode
        or "mbarrier" in instruction.opcode
        or "cluster" in instruction.opcode
    ):
        raise unsupported(instruction)
    narrow = instruction.parts[-1:] == ["cta"]

    def run(b: Batch, m: Mask) -> None:
        index = b.lane if m.index is None else m.index
        b.order.fence(np.unique(b.warp[index]), wide=not narrow)

    return run


def failed(program: Program, instruction: Instruction) -> Run:
    """A call of __assertfail(message, file, line, function, size of a character)."""

    def run(b: Batch, m: Mask) -> None:
        lane = 0 if m.index is None else int(m.index[0])
        words = []
        for memory in instruction.operands[:2]:
            place = memory.base
            at = int(b.local.base[lane]) + place.address
            pointer = int(b.local.view[at : at + 8].view(np.uint64)[0])
            region = b.window.find(pointer, pointer + 1)
            raw = b"" if region is None else region.view[pointer - region.address :].tobytes()
            words.append(raw.split(b"\0")[0].decode("utf-8", "replace"))
        b.fault(f"assertion failed: {words[0]} ({words[1]})", lane)

    return run


MAKERS: dict[str, Callable[[Program, Instruction], Run]] = {
    "mov": moves.mov,
    "cvta": moves.cvta,
    "isspacep": moves.isspacep,
    "createpolicy": moves.policy,
    "membar": fence,
    "fence": fence,
    "assertfail": failed,
    "ld": accesses.load,
    "ldu": accesses.load,
    "st": accesses.store,
    "atom": atomics.atom,
    "red": atomics.atom,
    "cp": copies.cp,
    "ldmatrix": matrices.ldmatrix,
    "stmatrix": matrices.stmatrix,
    "movmatrix": matrices.movmatrix,
    "shfl": warp.shfl,
    "vote": warp.vote,
    "match": warp.match,
    "redux": warp.redux,
    "elect": warp.elect,
    "activemask": warp.activemask,
}
