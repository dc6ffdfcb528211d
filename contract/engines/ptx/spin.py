"""Loops that were run too often: one that waits for another block is not one without an end.

Blocks of a later batch do not run before those of an earlier one have ended, so that a block that spins on what a later
one writes (a persistent kernel, a barrier of the whole grid) cannot be executed, which says nothing of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from contract.engines.ptx.decoded import Block, Instruction

READS = frozenset(["ld", "atom"])
WRITES = frozenset(["st", "atom", "red"])
# what shared, local and constant memory hold, no other block changes
OWN = frozenset(["shared", "shared::cta", "local", "param", "const", "nc"])


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
