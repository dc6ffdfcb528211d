"""What instructions read and write, where control may go, and which registers may be read before they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contract.engines.ptx.decoded import (
    Instruction,
    Memory,
    Negated,
    Program,
    Register,
    Two,
    Vector,
)

# without a result, whatever their first operand is
NO_RESULT = frozenset(
    [
        "st",
        "stu",
        "red",
        "bra",
        "brx",
        "exit",
        "ret",
        "trap",
        "brkpt",
        "bar",
        "barrier",
        "membar",
        "fence",
        "prefetch",
        "prefetchu",
        "discard",
        "cp",
        "nanosleep",
        "pmevent",
        "stmatrix",
        "applypriority",
        "assertfail",
        "griddepcontrol",
        "setmaxnreg",
        "print",
    ]
)


def flatten(operands: Iterable[Any]) -> list[Any]:
    """Operands with braces opened, in order."""
    found: list[Any] = []
    for what in operands:
        if isinstance(what, Vector):
            found.extend(flatten(what.items))
        elif isinstance(what, Two):
            found.extend((what.first, what.second))
        else:
            found.append(what)
    return found


def has_result(opcode: str) -> bool:
    root, _, rest = opcode.partition(".")
    return root not in NO_RESULT or (root in ("bar", "barrier") and "red" in rest.split("."))


def mark(made: Instruction) -> None:
    """Which registers an instruction reads, writes, and needs to be defined."""
    operands = list(made.operands)
    if has_result(made.opcode) and operands:
        made.writes = tuple(r.index for r in flatten(operands[:1]) if isinstance(r, Register))
        operands = operands[1:]
    reads, observed = set(), set()
    for what in flatten(operands):
        if isinstance(what, Register):
            reads.add(what.index)
        elif isinstance(what, Negated):
            reads.add(what.of.index)
        elif isinstance(what, Memory) and isinstance(what.base, Register):
            reads.add(what.base.index)
            observed.add(what.base.index)
    if made.guard is not None:
        reads.add(made.guard.index)
        observed.add(made.guard.index)
    if made.root in ("brx", "bar", "barrier"):
        observed |= reads
    made.reads, made.observed = frozenset(reads), frozenset(observed)


def maybe_undefined(program: Program) -> frozenset[int]:
    """Registers that some path reads before it has written them; a predicated write counts as none."""
    blocks = program.blocks
    exposed, defined = [], []
    for block in blocks:
        uses = defs = 0
        for item in [*block.body, *([block.end] if block.end else [])]:
            for r in item.reads:
                uses |= (1 << r) & ~defs
            if item.guard is None:
                for r in item.writes:
                    defs |= 1 << r
        exposed.append(uses)
        defined.append(defs)
    everything = (1 << len(program.widths)) - 1
    before = [everything] * len(blocks)
    before[0] = 0
    work = [0]
    seen = {0}
    while work:
        at = work.pop()
        out = before[at] | defined[at]
        for after in successors(program, at):
            met = before[after] & out
            if met != before[after] or after not in seen:
                before[after] = met
                seen.add(after)
                work.append(after)
    found = 0
    for at in seen:
        found |= exposed[at] & ~before[at]
    return frozenset(i for i in range(len(program.widths)) if found >> i & 1)


def successors(program: Program, at: int) -> list[int]:
    end = program.blocks[at].end
    if end is None:
        return [at + 1]
    found = list(end.targets)
    falls = end.guard is not None or end.root in ("bar", "barrier")
    return [*found, at + 1] if falls else found
