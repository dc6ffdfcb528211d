"""Which lanes of a batch are where, which go next, and which wait at a barrier.

Lanes with the lowest block of instructions go first, which brings diverged lanes together where compilers mean them to
meet. A block that needs more lanes of a warp than have come sets those that have aside until the others arrive; where
nothing else can run, that is a fault.

Lanes that polled global memory (an atomic, a strong load) and come back there go after all others until it changed: what
they wait for is for others to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.batch import WARP, Batch, Mask
from contract.engines.ptx.decoded import Block, Instruction
from contract.engines.ptx.faults import Unsupported
from contract.engines.ptx.warp import BITS, met

Array = NDArray[Any]
# so often in a row the lowest block goes first although others could: they might be what it waits for. Then one of all,
# the highest first.
PATIENCE = 1024


@dataclass(slots=True)
class Barrier:
    """One named barrier of every block of the batch.

    Attributes:
        waiting: lanes that wait; where they go on: `after`.
        arrived: warps that arrived and did not wait; what they knew then: `knew`.
        expected: threads of each block, 0 for all.
        asked: the predicate of bar.red.
    """

    waiting: Array
    arrived: Array
    expected: Array
    asked: Array
    after: dict[int, Array] = field(default_factory=dict)
    knew: dict[int, Array] = field(default_factory=dict)
    reductions: list[tuple[Array, str, int]] = field(default_factory=list)
    instruction: Instruction | None = None


class Schedule:
    """Which lanes of a batch are where.

    Attributes:
        idle: how often none but such lanes were left since global memory last changed or the batch last gave way.
    """

    def __init__(self, b: Batch) -> None:
        self.b = b
        self.ready: dict[int, tuple[Array, int]] = {0: (~b.exited, b.live)}
        self.parked: dict[int, tuple[Array, int]] = {}
        self.barriers: dict[int, Barrier] = {}
        self.turns = self.idle = 0
        self.polled: dict[int, tuple[int, Array]] = {}

    def go(self, number: int, lanes: Array, count: int) -> None:
        """Let lanes go on at a block of instructions."""
        if number in self.parked:
            # they were set aside for want of such as these
            held, n = self.parked.pop(number)
            lanes, count = lanes | held, count + n
        if number in self.ready:
            held, n = self.ready[number]
            lanes, count = lanes | held, count + n
        self.ready[number] = (lanes, count)

    def next(self) -> tuple[int, Mask] | None:
        """The next block and its lanes; None where no lane runs any more."""
        while not self.ready:
            if not self.barriers or not self.complete():
                if self.parked or any(x.waiting.any() for x in self.barriers.values()):
                    self.stuck()
                return None
        number = self._chosen()
        lanes, count = self.ready.pop(number)
        if number in self.b.program.polls:
            self._polls(number, lanes)
        return number, Mask(lanes, count, count == self.b.live)

    def _chosen(self) -> int:
        busy = [n for n in self.ready if not self._found_nothing(n)] if self.polled else self.ready
        self.idle += not busy
        if len(self.ready) > 1:
            self.turns += 1
            if self.turns % PATIENCE == 0:
                every = sorted(self.ready, reverse=True)
                return every[self.turns // PATIENCE % len(every) - 1]
        return min(busy or self.ready)

    def _polls(self, number: int, lanes: Array) -> None:
        version = self.b.window.version
        before, others = self.polled.get(number, (-1, lanes))
        if before < version:
            self.idle = 0
        self.polled[number] = version, lanes if before < version else others | lanes

    def _found_nothing(self, number: int) -> bool:
        """Whether the lanes that are ready at a block were all there since global memory last changed."""
        if number not in self.polled:
            return False
        version, lanes = self.polled[number]
        return version == self.b.window.version and not (self.ready[number][0] & ~lanes).any()

    def park(self, number: int, lanes: Array) -> None:
        count = int(np.count_nonzero(lanes))
        held = self.parked.get(number)
        self.parked[number] = (lanes, count) if held is None else (held[0] | lanes, held[1] + count)

    def joined(self) -> None:
        """Let lanes go that wait at bar.warp.sync in several places, and are all that their mask names."""
        b = self.b
        sites = [
            number
            for number in self.parked
            if not b.program.blocks[number].body and b.program.blocks[number].members >= 0
        ]
        members = self._members(sites)
        gone = self._together(members)
        if not gone.any():
            return
        met(b, gone, members)
        for number in sites:
            held, _ = self.parked.pop(number)
            if (held & ~gone).any():
                self.park(number, held & ~gone)
            if (held & gone).any():
                self.go(number + 1, held & gone, int(np.count_nonzero(held & gone)))

    def _members(self, sites: list[int]) -> Array:
        """Of each lane the member mask with which it is set aside at one of these blocks; 0 for none."""
        members = np.zeros(self.b.lanes, np.uint32)
        for number in sites:
            held, _ = self.parked[number]
            members = np.where(held, self.b.wide(self.b.program.blocks[number].members), members)
        return members

    def _together(self, members: Array) -> Array:
        """Of the lanes that are set aside with these member masks, those that are all that their masks name."""
        b = self.b
        rows = members.reshape(-1, WARP)
        # bit j of lane i: lane j runs and is set aside with the same mask, or has exited
        here = (rows[:, :, None] == rows[:, None, :]) | b.exited.reshape(-1, 1, WARP)
        came = (here * BITS).sum(2).astype(np.uint32).reshape(-1)
        return np.asarray((members != 0) & (members & ~came == 0) & ~b.exited)

    def stop(self, m: Mask) -> None:
        """Lanes that exit."""
        b = self.b
        b.exited = b.exited | m.lanes
        b.live -= m.count
        if self.parked:
            # those that wait for lanes that are gone now need not
            for number, (lanes, count) in list(self.parked.items()):
                del self.parked[number]
                self.go(number, lanes, count)

    # barriers

    def barrier(self, number: int) -> Barrier:
        if number not in self.barriers:
            b = self.b
            none = np.zeros(b.lanes, bool)
            self.barriers[number] = Barrier(
                none, np.zeros(b.blocks * b.warps, bool), np.zeros(b.blocks, np.int64), none
            )
        return self.barriers[number]

    def arrive(
        self,
        number: int,
        m: Mask,
        expected: Array,
        after: int | None,
        ins: Instruction,
        asked: Array | None,
    ) -> None:
        """Lanes come to a barrier; those that wait go on at block `after` when it is complete."""
        b, bar = self.b, self.barrier(number)
        owners = np.unique(b.owner[m.lanes])
        before = bar.expected[owners]
        active = bar.waiting.reshape(b.blocks, -1)[owners].any(1) | bar.arrived.reshape(
            b.blocks, -1
        )[owners].any(1)
        if (active & (before != expected[owners])).any():
            b.fault(
                f"barrier {number} is used with different numbers of threads at once",
                int(np.argmax(m.lanes)),
            )
        bar.expected[owners] = expected[owners]
        bar.instruction = ins
        if after is None:
            warps = np.unique(b.warp[m.lanes])
            bar.arrived[warps] = True
            bar.knew.update(zip(warps.tolist(), b.order.knowledge(warps), strict=True))
        else:
            bar.waiting = bar.waiting | m.lanes
            held = bar.after.get(after)
            bar.after[after] = m.lanes if held is None else held | m.lanes
            if asked is not None:
                bar.asked = np.where(m.lanes, asked, bar.asked)

    def complete(self) -> bool:
        """Let lanes go whose barrier is complete; whether there were any."""
        found = False
        for number, bar in list(self.barriers.items()):
            done = self._done(number, bar)
            if done.any():
                self._release(bar, done)
                found = True
        return found

    def _done(self, number: int, bar: Barrier) -> Array:
        b = self.b
        waiting = bar.waiting.reshape(b.blocks, b.padded)
        some = waiting.any(1)
        everyone = (waiting | b.exited.reshape(b.blocks, b.padded)).all(1)
        warps = waiting.reshape(b.blocks, b.warps, WARP).any(2) | bar.arrived.reshape(
            b.blocks, b.warps
        )
        threads = warps.sum(1) * WARP
        over = (bar.expected > 0) & (threads > bar.expected)
        if over.any():
            block = int(np.argmax(over))
            b.now = bar.instruction
            b.fault(
                f"{threads[block]} threads came to barrier {number} of {bar.expected[block]}",
                block * b.padded,
            )
        done: Array = np.where(bar.expected > 0, threads == bar.expected, everyone & some)
        return done

    def _release(self, bar: Barrier, done: Array) -> None:
        b = self.b
        gone = np.repeat(done, b.padded) & bar.waiting
        self._reduce(bar, done, gone)
        whole = (bar.expected == 0) & done
        if whole.any():
            b.order.everyone(whole)
        for block in np.nonzero(done & ~whole)[0]:
            warps = np.arange(block * b.warps, (block + 1) * b.warps)
            waits = bar.waiting.reshape(-1, WARP)[warps].any(1)
            came = waits | bar.arrived[warps]
            b.order.meet(warps[came], warps[waits], bar.knew)
        bar.waiting = bar.waiting & ~gone
        bar.arrived = bar.arrived & ~np.repeat(done, b.warps)
        bar.knew = {warp: row for warp, row in bar.knew.items() if bar.arrived[warp]}
        for number, lanes in list(bar.after.items()):
            going = lanes & gone
            count = int(np.count_nonzero(going))
            if count:
                self.go(number, going, count)
            left = lanes & ~gone
            if left.any():
                bar.after[number] = left
            else:
                del bar.after[number]

    def _reduce(self, bar: Barrier, done: Array, gone: Array) -> None:
        b = self.b
        kept = []
        for lanes, mode, index in bar.reductions:
            going = lanes & gone
            if going.any():
                yes = (bar.asked & gone).reshape(b.blocks, -1).sum(1)
                all_of = gone.reshape(b.blocks, -1).sum(1)
                value = {"popc": yes, "and": yes == all_of, "or": yes > 0}[mode]
                typed = value.astype(np.uint32 if mode == "popc" else bool)
                b.put(index, np.repeat(typed, b.padded), Mask(going, int(going.sum()), False))
            if (lanes & ~gone).any():
                kept.append((lanes & ~gone, mode, index))
        bar.reductions = kept

    def stuck(self) -> NoReturn:
        """Raise the fault of lanes that wait for what cannot come."""
        b = self.b
        waits = [
            (f"`{x.instruction.text}` ({b.program.line(x.instruction)})", x.waiting)
            for x in self.barriers.values()
            if x.instruction is not None and x.waiting.any()
        ]
        if self.parked:
            number, (lanes, _) = next(iter(self.parked.items()))
            block = b.program.blocks[number]
            self._check_apart(block)
            b.now = block.body[0] if block.body else block.end
            lane = int(np.argmax(lanes))
            warp = slice(lane // WARP * WARP, lane // WARP * WARP + WARP)
            others = ~lanes[warp] & ~b.exited[warp]
            other = warp.start + int(np.argmax(others))
            at = self._where(other, waits)
            b.fault(f"divergence: not all lanes of the warp come here; {b.who(other)} {at}", lane)
        lanes = waits[0][1]
        b.now = next(x.instruction for x in self.barriers.values() if x.waiting.any())
        lane = int(np.argmax(lanes))
        first = int(b.owner[lane]) * b.padded
        mine = slice(first, first + b.padded)
        others = ~lanes[mine] & ~b.exited[mine]
        if others.any():
            other = first + int(np.argmax(others))
            b.fault(
                f"deadlock: not all threads come to this barrier; {b.who(other)} {self._where(other, waits)}",
                lane,
            )
        b.fault("deadlock: fewer threads come to this barrier than it waits for", lane)

    def _check_apart(self, block: Block) -> None:
        """Raise Unsupported where lanes exchange values from several places, which all that take part may."""
        b = self.b
        if not block.body or block.members < 0:
            return
        first = block.body[0]
        alike = [
            number
            for number in self.parked
            if (other := b.program.blocks[number]).body
            and other.members >= 0
            and other.body[0].opcode == first.opcode
        ]
        if self._together(self._members(alike)).any():
            lines = ", ".join(b.program.line(b.program.blocks[n].body[0]) for n in alike)
            raise Unsupported(
                f"{b.program.name}: lanes of one warp meet at `{first.opcode}` in several places: {lines}"
            )

    def _where(self, lane: int, waits: list[tuple[str, Array]]) -> str:
        for text, lanes in waits:
            if lanes[lane]:
                return f"waits at {text}"
        for number, (lanes, _) in self.parked.items():
            if lanes[lane]:
                block = self.b.program.blocks[number]
                first = block.body[0] if block.body else block.end
                assert first is not None
                return f"waits at `{first.text}` ({self.b.program.line(first)})"
        return "has exited"
