"""Loops that wait for another block: those that may, and of one that was run too often whether it does.

A block that spins on what one writes that has not begun (a persistent kernel, a barrier of the whole grid) must let it
begin: what waits gives way (contract.engines.ptx.machine).
"""

from __future__ import annotations

from collections.abc import Sequence

from contract.engines.ptx.decoded import Block, Instruction
from contract.engines.ptx.syntax import STRONG

READS = frozenset(["ld", "atom"])
WRITES = frozenset(["st", "atom", "red"])
# what shared, local and constant memory hold, no other block changes
OWN = frozenset(["shared", "shared::cta", "local", "param", "const", "nc"])


def polls(blocks: Sequence[Block]) -> frozenset[int]:
    """The blocks with an atomic, or a strong load, of global memory: run again while nothing changed they find the same."""
    return frozenset(block.number for block in blocks if any(_polls(i) for i in block.body))


def _polls(instruction: Instruction) -> bool:
    strong = instruction.root == "atom" or not STRONG.isdisjoint(instruction.parts)
    return strong and _reaches(instruction, READS)


def awaited(blocks: Sequence[Block], loop: set[int]) -> Instruction | None:
    """The read of global memory that decides whether the loop goes on; None where there is none, or none is written.

    Args:
        loop: the numbers of the blocks of instructions that were run too often.
    """
    if not any(_reaches(i, WRITES) for block in blocks for i in block.body):
        return None
    inside = [i for number in loop for i in blocks[number].body]
    needed: set[int] = set()
    for number in loop:
        ending = blocks[number].end
        if ending is not None:
            needed |= ending.reads
    while True:
        more = set().union(*(i.reads for i in inside if needed & set(i.writes)))
        if more <= needed:
            break
        needed |= more
    return next((i for i in inside if _reaches(i, READS) and needed & set(i.writes)), None)


def _reaches(instruction: Instruction, roots: frozenset[str]) -> bool:
    return instruction.root in roots and OWN.isdisjoint(instruction.parts)
