"""Launches: a program run by all threads of a grid, on the memory it is given.

Blocks go in batches, all lanes of a batch as NumPy arrays; an instruction is executed once for the lanes that are at
it. Blocks of different batches, and warps, take turns in one fixed order: what another order would give is not seen,
but accesses whose order matters are reported (contract.engines.ptx.races).

Blocks that synchronise through global memory may see more or less of each other, and no access of theirs is a race.
Together, all of them do their first atomic before any goes on; one after the other, each sees the ones before it alone.
Both are what a device may do, and so is the reverse (`blocks` of `launch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import noncoherent, undefined
from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import Block, Instruction, Program, Together
from contract.engines.ptx.faults import PtxFault, Unsupported
from contract.engines.ptx.memory import GlobalMemory, Region, Window
from contract.engines.ptx.races import Order
from contract.engines.ptx.racing import Enough, Racing, Undefined
from contract.engines.ptx.schedule import Schedule
from contract.engines.ptx.spin import awaited

Array = NDArray[Any]
Size = tuple[int, int, int]
# Lanes side by side: fewer cost more calls of NumPy, more leave the cache.
MOST_LANES = 1 << 15
MOST_SHARED = 1 << 25
# PTX ISA, section 5.1.7, and CUDA's limits of a launch: threads of a block, its sizes, those of a grid
MOST_THREADS = 1024
BLOCK_LIMIT = (1024, 1024, 64)
GRID_LIMIT = ((1 << 31) - 1, 65535, 65535)
# Each run with racing reads may find more of them, such as were hidden by later ones.
MOST_RUNS = 16
# A loop that goes round this often is taken for one without an end.
LIMIT = 5_000_000
# How the blocks of a grid may take their turns.
BLOCKS = ("together", "in_turn", "reversed")
# The polls of memory that nobody changed after which the next batch has its turn, and the rounds of a loop after which it
# is asked whether it waits for another batch at all.
MOST_POLLS = 8
MOST_ROUNDS = 1024
# So many batches that wait keep their registers; the one that all wait for may be the last to begin: that is begun next.
MOST_WAITING = 512


@dataclass(slots=True)
class Launched:
    """What a launch did.

    Attributes:
        counts: executed instructions by opcode, each thread counted.
        approximate: opcodes among them whose result the ISA leaves open within a bound.
        atomics: opcodes that add floating-point numbers in an order that a device leaves open.
        lanes: threads of the grid.
        batches: how many batches they took.
        contended: whether lanes stored different values to one place of shared memory at once: the last one's stays, the
            first one's where skew is -1.
        written: addresses of the regions of global memory that were stored to.
        racing_reads: reads of lanes whose value a race leaves open, and that nothing depends on.
        communicates: whether blocks, of several, read or changed global memory in a way that others may answer to: what
            they see may depend on which of them came first.
    """

    counts: dict[str, int] = field(default_factory=dict)
    approximate: tuple[str, ...] = ()
    atomics: tuple[str, ...] = ()
    lanes: int = 0
    batches: int = 0
    written: tuple[int, ...] = ()
    racing_reads: int = 0
    contended: bool = False
    communicates: bool = False


def launch(
    program: Program,
    grid: Size,
    block: Size,
    params: bytes,
    memory: GlobalMemory,
    dynamic_shared: int = 0,
    skew: int = 0,
    progress: Callable[[int, int], None] | None = None,
    limit: int = LIMIT,
    most_lanes: int = MOST_LANES,
    blocks: str = "together",
) -> Launched:
    """Run an entry on every thread of a grid.

    Args:
        params: the parameter block, laid out as the entry declares it.
        memory: what pointers in it may point to; written in place.
        dynamic_shared: bytes of shared memory beside the static ones.
        skew: -1, 0 or 1: approximate instructions give the lower end of their bound, the nearest value, the upper end.
        progress: called with the blocks done and all blocks, after each batch.
        limit: how often one block of instructions may be run by a batch.
        blocks: 'together'; 'in_turn' or 'reversed': one after the other, by their numbers or from the last one, where one
            that waits for others lets them go on.

    Raises:
        PtxFault: the kernel is wrong; the message names instruction, line, thread and block.
        Unsupported: the executor cannot tell.
    """
    _fits(program, grid, block, params, dynamic_shared)
    runs = _Runs(
        program,
        grid,
        block,
        params,
        memory,
        dynamic_shared,
        skew,
        progress,
        limit,
        most_lanes,
        blocks,
    )
    return runs.settled()


class _Runs:
    """The runs of one launch: a second, and seldom more, where reads race with writes (contract.engines.ptx.racing)."""

    def __init__(
        self,
        program: Program,
        grid: Size,
        block: Size,
        params: bytes,
        memory: GlobalMemory,
        dynamic_shared: int,
        skew: int,
        progress: Callable[[int, int], None] | None,
        limit: int,
        most_lanes: int,
        blocks: str,
    ) -> None:
        self.program, self.grid, self.block = program, grid, block
        self.memory, self.dynamic_shared, self.skew = memory, dynamic_shared, skew
        self.progress, self.limit = progress, limit
        self.raw = np.frombuffer(params, np.uint8)
        self.blocks = grid[0] * grid[1] * grid[2]
        self.warps = warps = -(-(block[0] * block[1] * block[2]) // 32)
        shared = program.shared_total(dynamic_shared)
        # shared memory is shadowed by a record of each granule and of its reads by each warp
        heavy = max(1, shared * (1 + (18 + 8 * warps) // program.granules["shared"]))
        if blocks not in BLOCKS:
            raise ValueError(f"blocks={blocks!r}; use one of {', '.join(BLOCKS)}")
        self.turns = blocks
        together = max(1, min(most_lanes // (warps * 32), MOST_SHARED // heavy))
        self.each = together if blocks == "together" else 1
        self.racing = Racing()
        self.window = Window([], 1)
        self.order = Order(0, self.warps)

    def settled(self) -> Launched:
        """Run until no read is found that races and was not known to."""
        # an undefined value that was visible without any race
        without = ""
        try:
            for _ in range(MOST_RUNS):
                report, fault = self.once()
                if isinstance(fault, Undefined) and self.racing.readers and str(fault) != without:
                    raise PtxFault(self.blamed(fault, without)) from None
                if not self.racing.found:
                    if fault is not None:
                        raise fault
                    noncoherent.check(self.program, self.window, self.order, self.warps)
                    report.written = tuple(r.address for r in self.window.regions if r.kept)
                    report.racing_reads = self.racing.reads
                    report.contended = self.racing.contended
                    return report
                if isinstance(fault, Undefined) and not self.racing.readers:
                    without = str(fault)
                last = next(iter(self.racing.found.values())).message
                self.racing.merge()
                self.window.restore()
        finally:
            self.window.done()
        raise PtxFault(f"{last}; {MOST_RUNS} runs of the launch have each found more such reads")

    def once(self) -> tuple[Launched, PtxFault | None]:
        """One run, and the fault that it ended with."""
        self.window = _window(self.program, self.memory)
        self.racing.start()
        order = self.order = Order(self.blocks, self.warps)
        visits = np.zeros(len(self.program.blocks), np.int64)
        report = Launched(lanes=self.blocks * self.block[0] * self.block[1] * self.block[2])
        try:
            with np.errstate(all="ignore"):
                self._batches(order, visits)
        except PtxFault as fault:
            return report, fault
        except Enough:
            return report, None
        report.batches = -(-self.blocks // self.each)
        report.communicates = self.blocks > 1 and bool(order.acquired.any())
        _count(self.program, visits, report)
        return report, None

    def _batches(self, order: Order, visits: Array) -> None:
        """Run all batches, each until it ends or waits for another; those that wait take turns then."""
        starts = deque(range(0, self.blocks, self.each))
        if self.turns == "reversed":
            starts.reverse()
        waiting: deque[Iterator[None]] = deque()
        version = done = 0
        while starts or waiting:
            if starts:
                first = starts.popleft() if len(waiting) < MOST_WAITING else starts.pop()
                batch = self._batch(first, order, visits)
            else:
                batch = waiting.popleft()
            ended = next(batch, True)
            if ended:
                done += self.each
            else:
                waiting.append(batch)
            # those that wait for each other and change nothing are no progress
            if self.progress is not None and (ended or self.window.version > version):
                self.progress(min(done, self.blocks), self.blocks)
            version = self.window.version

    def _batch(self, first: int, order: Order, visits: Array) -> Iterator[None]:
        """Run a batch; where it waits for another one, control is given away."""
        count = min(self.each, self.blocks - first)
        order.batch(first, count)
        batch = Batch(
            self.program,
            self.grid,
            self.block,
            first,
            count,
            self.raw,
            self.window,
            order,
            self.racing,
            self.dynamic_shared,
            self.skew,
        )
        for _ in _run(batch, visits, self.limit):
            held = order.held()
            yield
            order.resume(held)

    def blamed(self, fault: Undefined, without: str) -> str:
        """The race behind a fault: of the reads that race those that alone lead to one."""
        readers = self.racing.readers
        chosen, shown = next(iter(readers.values())), str(fault)
        for number, reader in readers.items() if len(readers) > 1 else ():
            self.window.restore()
            self.racing.only = number
            _, alone = self.once()
            if isinstance(alone, Undefined) and str(alone) != without:
                chosen, shown = reader, str(alone)
                break
        return f"{chosen.message}; what was read matters: {shown}"


def _fits(program: Program, grid: Size, block: Size, params: bytes, dynamic_shared: int) -> None:
    """Raise what a driver would refuse."""
    threads = block[0] * block[1] * block[2]
    if len(params) < program.function.parameter_bytes:
        raise PtxFault(
            f"{program.name}: launched with {len(params)} bytes of parameters, it has"
            f" {program.function.parameter_bytes}"
        )
    if threads > MOST_THREADS or any(
        not 1 <= n <= m for n, m in zip(block, BLOCK_LIMIT, strict=True)
    ):
        raise PtxFault(f"{program.name}: launched with blocks of {block} threads")
    if any(not 1 <= n <= m for n, m in zip(grid, GRID_LIMIT, strict=True)):
        raise PtxFault(f"{program.name}: launched with a grid of {grid} blocks")
    if dynamic_shared < 0:
        raise PtxFault(f"{program.name}: launched with {dynamic_shared} bytes of shared memory")
    required = (*program.function.directives.get("reqntid", ()), 1, 1)[:3]
    if "reqntid" in program.function.directives and required != block:
        raise PtxFault(f"{program.name}: launched with blocks of {block}, .reqntid says {required}")
    most = program.function.directives.get("maxntid")
    if most and threads > int(np.prod(most)):
        raise PtxFault(
            f"{program.name}: launched with {threads} threads a block, .maxntid allows {most}"
        )
    if "reqnctapercluster" in program.function.directives:
        raise Unsupported(f"{program.name}: clusters of blocks")


def _window(program: Program, memory: GlobalMemory) -> Window:
    own = []
    for variable in program.globals:
        own.append(Region(variable.view, variable.address, f"variable {variable.name}"))
    return Window([*memory.regions, *own], program.granules["global"])


def _run(b: Batch, visits: Array, limit: int) -> Iterator[None]:
    """Run all lanes of a batch to their end; a stop is where all that is left waits for another batch."""
    blocks = b.program.blocks
    schedule = b.schedule = Schedule(b)
    poison = b.poison
    runs = np.zeros(len(blocks), np.int64)
    while (found := schedule.next()) is not None:
        number, m = found
        block = blocks[number]
        if block.gather is not None and m.count < b.lanes:
            kept = _gathered(b, block, m)
            if kept is None:
                continue
            m = kept
        whole = m.count == b.lanes
        last = block.last if whole else number
        visits[number : last + 1] += m.count
        runs[number : last + 1] += 1
        if runs[number] > limit:
            _endless(b, block, m)
        if b.blocks < b.grid_blocks and _waits(b, runs, number):
            yield
        _execute(b, block.steps if whole else block.body, m)
        ending = blocks[last].end
        if ending is None:
            schedule.go(last + 1, m.lanes, m.count)
        else:
            b.now = ending
            if poison:
                undefined.observe(b, ending, m)
            ending.run(b, m)  # type: ignore[misc]  # bound by build.bind


def _waits(b: Batch, runs: Array, number: int) -> bool:
    """Whether what is left to the batch is a loop that another one ends."""
    if b.schedule.idle >= MOST_POLLS:
        b.schedule.idle = 0
        return True
    if runs[number] % MOST_ROUNDS:
        return False
    loop = set(np.nonzero(2 * runs > runs[number])[0].tolist())
    return awaited(b.program.blocks, loop) is not None


def _execute(b: Batch, steps: Sequence[Instruction | Together], m: Mask) -> None:
    poison = b.poison
    for step in steps:
        if isinstance(step, Together):
            if not poison.keys().isdisjoint(step.touched) or not step.run(b):
                _execute(b, step.members, m)
            continue
        b.now = step
        if poison:
            undefined.execute(b, step, m)
        else:
            step.run(b, m)  # type: ignore[misc]  # bound by build.bind


def _gathered(b: Batch, block: Block, m: Mask) -> Mask | None:
    """Set lanes aside that must wait for others of their warp; the rest, if any."""
    assert block.gather is not None
    waits = block.gather(b, m)
    if waits is None:
        return m
    b.schedule.park(block.number, waits)
    if block.members >= 0 and len(b.schedule.parked) > 1:
        b.schedule.joined()
    lanes = m.lanes & ~waits
    count = int(np.count_nonzero(lanes))
    return Mask(lanes, count, False) if count else None


def _endless(b: Batch, block: Block, m: Mask) -> NoReturn:
    b.now = block.body[0] if block.body else block.end
    b.fault("taken for a loop without an end: it was run too often", int(np.argmax(m.lanes)))


def _count(program: Program, visits: Array, report: Launched) -> None:
    done = zip(program.opcodes, (visits @ program.tally).tolist(), strict=True)
    report.counts = {opcode: count for opcode, count in done if count}
    executed = report.counts.keys()
    report.approximate = tuple(sorted(program.approximate & executed))
    report.atomics = tuple(sorted(program.atomics & executed))
