"""Instructions executed at once: what all lanes of a batch do where they are all at one place.

Blocks that begin only because lanes of a warp might have to wait for others there are run through as one stretch. Its
instructions are put in an order in which those of one kind meet, and what meets is executed together: a call of NumPy
costs a microsecond whatever it does, and a block has as few as 32 lanes. Nothing that a launch does is changed by that:
each register is written after and before what it was, and accesses to memory keep their order, by which races are told.
Where anything might be said of an instruction, those that were joined are executed one by one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from contract.engines.ptx.accesses import reads_parameter
from contract.engines.ptx.decoded import Block, Instruction, Program, Together

# what keeps its place among the others of these; everything else is a function of registers
ORDERED = frozenset(
    [
        "ld",
        "ldu",
        "st",
        "atom",
        "red",
        "cp",
        "ldmatrix",
        "stmatrix",
        "membar",
        "fence",
        "assertfail",
        "prefetch",
        "prefetchu",
        "discard",
        "nanosleep",
        "pmevent",
        "applypriority",
        "print",
    ]
)
# more at once cost more in memory than they save
MOST = 32


def plan(program: Program) -> None:
    """Give every block its steps."""
    blocks = program.blocks
    targets = {n for block in blocks if block.end is not None for n in block.end.targets}
    # what polls is looked at by the schedule each time
    alone = targets | program.polls
    begins = [n == 0 or n in alone or blocks[n - 1].end is not None for n in range(len(blocks))]
    for block in blocks:
        stretch = _stretch(blocks, begins, block.number) if begins[block.number] else [block]
        block.last = stretch[-1].number
        block.steps = arranged([item for one in stretch for item in one.body])


def _stretch(blocks: list[Block], begins: list[bool], first: int) -> list[Block]:
    """The block and those that lanes can only come to from the one before."""
    last = first
    while blocks[last].end is None and last + 1 < len(blocks) and not begins[last + 1]:
        last += 1
    return blocks[first : last + 1]


def arranged(items: Sequence[Instruction]) -> list[Instruction | Together]:
    """The instructions in an order that gives the same, those of one kind joined where they can be."""
    if sum(item.kin is not None for item in items) < 2 or any(map(_carries, items)):
        return list(items)
    return _Arrangement(items).steps


def _carries(item: Instruction) -> bool:
    """Whether an instruction reads or writes the carry, which is no register."""
    return item.root in ("addc", "subc", "madc") or "cc" in item.parts


class _Arrangement:
    """What is ready to be executed: single instructions as soon as they are, those with kin as late as they can."""

    def __init__(self, items: Sequence[Instruction]) -> None:
        self.items = items
        self.steps: list[Instruction | Together] = []
        self.after: list[list[int]] = [[] for _ in items]
        self.needs = [0] * len(items)
        self._depend()
        self.single: list[int] = []
        self.kin: dict[object, list[int]] = {}
        self.ordered = deque(i for i, item in enumerate(items) if _ordered(item))
        for i, needs in enumerate(self.needs):
            if not needs:
                self._ready(i)
        while self._step():
            pass

    def _depend(self) -> None:
        """Of each instruction those that must come after it: by the registers that both touch."""
        written: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        for i, item in enumerate(self.items):
            before = {written[r] for r in (*item.reads, *item.writes) if r in written}
            for r in item.writes:
                before.update(read.get(r, ()))
            before.discard(i)
            for r in item.reads:
                read.setdefault(r, []).append(i)
            for r in item.writes:
                written[r] = i
                read[r] = [i] if r in item.reads else []
            self.needs[i] = len(before)
            for j in before:
                self.after[j].append(i)

    def _ready(self, i: int) -> None:
        item = self.items[i]
        if _ordered(item):
            return
        if item.kin is None:
            heapq.heappush(self.single, i)
        else:
            heapq.heappush(self.kin.setdefault(item.kin.kind, []), i)

    def _step(self) -> bool:
        """Take the next instructions; whether there were any."""
        if self.single:
            self._take([heapq.heappop(self.single)])
            return True
        waiting = [(found[0], kind) for kind, found in self.kin.items() if found]
        first, kind = min(waiting, key=lambda one: one[0], default=(len(self.items), None))
        if self.ordered and not self.needs[self.ordered[0]] and self.ordered[0] < first:
            self._take(self._run_of_ordered())
            return True
        if kind is None:
            return False
        found = self.kin[kind]
        self._take([heapq.heappop(found) for _ in range(min(len(found), MOST))])
        return True

    def _run_of_ordered(self) -> list[int]:
        """The next access to memory, and those of its kind that follow."""
        chosen = [self.ordered.popleft()]
        kin = self.items[chosen[0]].kin
        while kin is not None and self.ordered and len(chosen) < MOST:
            other = self.items[self.ordered[0]].kin
            if other is None or other.kind != kin.kind or self.needs[self.ordered[0]]:
                break
            chosen.append(self.ordered.popleft())
        return chosen

    def _take(self, chosen: list[int]) -> None:
        members = [self.items[i] for i in chosen]
        kin = [member.kin for member in members if member.kin is not None]
        if len(members) == 1:
            self.steps.append(members[0])
        else:
            touched = frozenset(r for one in members for r in (*one.reads, *one.writes))
            run = kin[0].join([one.part for one in kin])
            self.steps.append(Together(members, touched, run))
        for i in chosen:
            for j in self.after[i]:
                self.needs[j] -= 1
                if not self.needs[j]:
                    self._ready(j)


def _ordered(item: Instruction) -> bool:
    """Whether an instruction must keep its place among those that touch memory."""
    # a parameter of the entry is a slot like a register
    return item.root in ORDERED and not reads_parameter(item)
