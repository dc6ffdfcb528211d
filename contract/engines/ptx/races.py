"""Who touched which bytes last, and whether that is ordered before the present access.

Time is one number that grows with every access. `known[w, v]` is the time up to which warp w knows all that warp v of
its block has done; barriers raise it. An access by another warp that is later than what is known, one of the two being
a write, is a race; a write that leaves the bytes as they are is none, and two atomics are none. Whoever changed a granule by
an atomic, and looks at what it gave, comes after all atomics before that: they were observed (PTX ISA, 8, causality order).

The lanes of a warp are threads, too: of shared memory an access by another lane of the own warp is a race unless a
barrier or bar.warp.sync lies between, for either of which `met[w]` is the time; where part of a warp met alone, `pairs` says
up to when each lane knows what each other one did. Of the lanes that read a granule the last one is held, or that they were
several.

Warps also learn through memory: what one has fenced, or knew when it released, and published by an atomic or volatile
access since, is known to those of its block that look afterwards (an atomic, volatile or acquire access). Between blocks
nothing is known but that, if the fence was not of .cta scope. Which variable was used is not looked at, so that of kernels
that synchronise so some races are missed and no correct one is refused. What they would come to, other turns of the
blocks show (contract.engines.ptx.machine).

What is to be made of a read that races is for contract.engines.ptx.racing to say.

Source: PTX ISA, section 8 (Memory Consistency Model): data races, release and acquire patterns; CUDA C++ Programming
Guide, Independent Thread Scheduling and Warp Shuffle Functions: lanes do not go on together by themselves, and shfl.sync
orders no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# read records of a region that nobody has written are kept unsorted up to this many accesses
MOST_PENDING = 256
FOREVER = np.iinfo(np.int64).max
# lanes of a warp; for a lane: several have read
SEVERAL = LANES = 32


@dataclass(slots=True)
class Unordered:
    """Earlier accesses that are not ordered before present ones: of which, `at`, by which warps, and when.

    Attributes:
        reads: they were plain reads.
    """

    at: Array
    who: Array
    when: Array
    reads: bool


class _Marks:
    """Whether a granule occurs twice, in one pass over those that are asked for."""

    def __init__(self, granules: int) -> None:
        self._marks = np.zeros(granules, np.int64)

    def repeats(self, g: Array) -> bool:
        """Whether a granule is named twice."""
        count = np.arange(len(g))
        self._marks[g] = count
        return bool((self._marks[g] != count).any())


class SharedShadow(_Marks):
    """Of each granule the last plain write, and the last read and the last atomic of each warp of the block.

    Warps are those of the batch, lanes 0 .. 31.
    """

    def __init__(self, granules: int, warps: int) -> None:
        super().__init__(granules)
        self.granules, self.warps = granules, warps
        self.writer = np.full(granules, -1, np.int32)
        self.written = np.zeros(granules, np.int64)
        self.read = np.zeros((granules, warps), np.int64)
        self.writing = np.zeros(granules, np.int8)
        self.reading = np.zeros((granules, warps), np.int8)
        # made by the first atomic: when each warp changed it, and the lane that did so last
        self.changed: Array | None = None
        self.changing = np.zeros(0, np.int8)
        # whether what the last one gave is looked at
        self.observed = np.zeros(0, bool)
        self.last_write = self.last_read = 0

    def unordered(
        self, g: Array, warp: Array, lane: Array, order: Order, *, write: bool, atomic: bool
    ) -> list[Unordered]:
        """Earlier accesses of the block that are not ordered before the present ones."""
        found = [] if atomic else self._within(g, warp, lane, order, write=write)
        # nobody is without knowledge of what was before
        floor = order.floor
        if self.last_write > floor and (written := self.written[g]).max(initial=0) > floor:
            writer = self.writer[g]
            late = (writer >= 0) & (written > order.known[warp, np.maximum(writer, 0)])
            if late.any():
                at = np.nonzero(late)[0]
                found.append(Unordered(at, writer[at], written[at], False))
        changed = self.changed if not atomic else None
        read = self.read if write and self.last_read > floor else None
        for times in (changed, read):
            if times is None:
                continue
            mine = times[g]
            if mine.max(initial=0) <= floor:
                continue
            late = mine > order.known[warp]
            if times is changed:
                last = self._last(mine)[:, None]
                late &= np.take_along_axis(late, last, 1) | ~self.observed[g][:, None]
            at, who = np.nonzero(late)
            if len(at):
                found.append(Unordered(at, who, mine[at, who], times is self.read))
        return found

    def _last(self, times: Array) -> Array:
        """Which warp was the last; of those that were at once, the last in turn."""
        return np.asarray(self.warps - 1 - times[:, ::-1].argmax(1))

    def _within(
        self, g: Array, warp: Array, lane: Array, order: Order, *, write: bool
    ) -> list[Unordered]:
        """Earlier accesses by other lanes of the own warp."""
        found: list[Unordered] = []
        floor = order.met_floor
        if self.last_write > floor and (written := self.written[g]).max(initial=0) > floor:
            late = (written > order.between(warp, lane, self.writing[g])) & (
                self.writing[g] != lane
            )
            late &= self.writer[g] == warp % self.warps
            if late.any():
                at = np.nonzero(late)[0]
                found.append(Unordered(at, warp[at] % self.warps, written[at], False))
        if self.changed is not None and self.last_write > floor:
            mine = self.changed[g]
            last = self._last(mine)
            when = mine[np.arange(len(g)), last]
            late = (when > order.between(warp, lane, self.changing[g])) & (self.changing[g] != lane)
            late &= last == warp % self.warps
            if late.any():
                at = np.nonzero(late)[0]
                found.append(Unordered(at, last[at], when[at], False))
        if write and self.last_read > floor:
            own = g * self.warps + warp % self.warps
            read = self.read.reshape(-1)[own]
            reading = self.reading.reshape(-1)[own]
            late = (read > order.between(warp, lane, reading)) & (reading != lane)
            if late.any():
                at = np.nonzero(late)[0]
                found.append(Unordered(at, warp[at] % self.warps, read[at], True))
        return found

    def mark_read(
        self, g: Array, warp: Array, lane: Array, time: int | Array, last: int = 0
    ) -> None:
        """Note reads at a time, or each at its own; the latest is `last` then. warp: of the block."""
        at = g * self.warps + warp
        self.read.reshape(-1)[at] = time
        reading = self.reading.reshape(-1)
        reading[at] = lane
        several = reading[at] != lane
        if several.any():
            reading[at[several]] = SEVERAL
        self.last_read = last or int(time)

    def mark_write(
        self,
        g: Array,
        warp: Array,
        lane: Array,
        time: int | Array,
        last: int = 0,
        *,
        atomic: bool = False,
        observed: bool = False,
    ) -> None:
        """Note writes, as `mark_read` does reads. observed: what an atomic gave decides about something."""
        self.last_write = last or int(time)
        if atomic:
            if self.changed is None:
                self.changed = np.zeros((self.granules, self.warps), np.int64)
                self.changing = np.zeros(self.granules, np.int8)
                self.observed = np.zeros(self.granules, bool)
            self.changed[g, warp] = time
            self.changing[g] = lane
            self.observed[g] = observed
            return
        self.writer[g] = warp
        self.writing[g] = lane
        self.written[g] = time


class _Two:
    """Of each granule the latest access of one kind and another: of a different block or else a different warp."""

    def __init__(self, granules: int) -> None:
        self.who = np.full((2, granules), -1, np.int32)
        self.when = np.zeros((2, granules), np.int64)

    def mark(self, g: Array, warp: Array, time: int, warps: int) -> None:
        before, when = self.who[0, g], self.when[0, g]
        self._second(g, before, when, warp, (before >= 0) & (before != warp), warps)
        self.who[0, g] = warp
        self.when[0, g] = time
        # one granule touched by two warps at once
        latest = self.who[0, g]
        self._second(g, warp, np.broadcast_to(time, len(g)), latest, latest != warp, warps)

    def _second(
        self, g: Array, who: Array, when: Array, latest: Array, chosen: Array, warps: int
    ) -> None:
        """Keep the chosen accesses beside the latest, unless they are of its block and one of another is held."""
        at = np.nonzero(chosen)[0]
        if not len(at):
            return
        block, held = latest[at] // warps, self.who[1, g[at]]
        at = at[(who[at] // warps != block) | (held < 0) | (held // warps == block)]
        self.who[1, g[at]] = who[at]
        self.when[1, g[at]] = when[at]

    def both(self, g: Array) -> list[tuple[Array, Array]]:
        return [(self.who[i, g], self.when[i, g]) for i in (0, 1)]


class GlobalShadow:
    """Of each granule the last plain write, two plain reads and two atomics.

    Reads of a region that nobody writes cost nothing but their record: they are sorted in at its first write.
    """

    def __init__(self, granules: int) -> None:
        self.granules = granules
        self.pending: list[tuple[Array, Array, int, int]] = []
        self.reads: _Two | None = None
        self.atomics: _Two | None = None
        # those of .cta scope
        self.narrow: _Two | None = None
        # whether what the last one gave is looked at
        self.observed = np.zeros(0, bool)

    def make(self) -> None:
        self.writer = np.full(self.granules, -1, np.int32)
        self.written = np.zeros(self.granules, np.int64)
        self.reads = _Two(self.granules)
        for pending in self.pending:
            self.reads.mark(*pending)
        self.pending = []

    def mark_read(self, g: Array, warp: Array, time: int, warps: int) -> None:
        if self.reads is not None:
            self.reads.mark(g, warp, time, warps)
            return
        self.pending.append((g, warp, time, warps))
        if len(self.pending) > MOST_PENDING:
            self.make()

    def mark_write(
        self,
        g: Array,
        warp: Array,
        time: int | Array,
        warps: int,
        *,
        atomic: bool = False,
        observed: bool = False,
        narrow: bool = False,
    ) -> None:
        if self.reads is None:
            self.make()
        if atomic:
            if self.atomics is None:
                self.atomics = _Two(self.granules)
                self.observed = np.zeros(self.granules, bool)
            self.atomics.mark(g, warp, int(time), warps)
            self.observed[g] = observed
            if narrow:
                self.narrow = self.narrow or _Two(self.granules)
                self.narrow.mark(g, warp, int(time), warps)
            return
        self.writer[g] = warp
        self.written[g] = time

    def unordered(
        self,
        g: Array,
        warp: Array,
        order: Order,
        *,
        write: bool,
        atomic: bool,
        narrow: bool = False,
    ) -> list[Unordered]:
        """Earlier accesses that are not ordered before the present ones; `who` are warps of the grid.

        narrow: the present ones are of .cta scope, so that atomics of other blocks are none to them.
        """
        if self.reads is None:
            if not write:
                return []
            self.make()
        assert self.reads is not None
        others = [(self.writer[g], self.written[g], False)]
        if not atomic and self.atomics is not None:
            (last, when), (other, earlier) = self.atomics.both(g)
            seen = (last == warp) | order.before(np.maximum(last, 0), when, warp)
            seen &= self.observed[g]
            others += [(last, when, False), (np.where(seen, -1, other), earlier, False)]
        apart = (self.atomics if narrow else self.narrow) if atomic else None
        if apart is not None:
            block = warp // order.warps
            for who, when in apart.both(g):
                others.append((np.where(who // order.warps == block, -1, who), when, False))
        if write:
            others += [(*one, True) for one in self.reads.both(g)]
        found = []
        for who, when, reads in others:
            at = np.nonzero((who >= 0) & (who != warp))[0]
            if not len(at):
                continue
            at = at[~order.before(who[at].astype(np.int64), when[at], warp[at].astype(np.int64))]
            if len(at):
                found.append(Unordered(at, who[at].astype(np.int64), when[at], reads))
        return found


class Order:
    """What is ordered before what, for the warps of the batch and the blocks of the grid.

    Attributes:
        known: (warps of the batch, warps of a block): see the module; a warp knows itself.
        floor: what every warp of the batch knows of its whole block.
        met: (warps of the batch,): when the lanes of a warp last met.
        met_floor: when those of all had.
        pairs: (warps of the batch, 32, 33): up to when lane i knows what lane j did, and under 32 the latest of these; made
            when part of a warp first meets alone.
    """

    def __init__(self, grid_blocks: int, warps: int) -> None:
        self.warps = warps
        self.time = 1
        # up to when what a warp of the grid did is published to its block, and to all
        self.shown = np.zeros((2, grid_blocks, warps), np.int64)
        self.acquired = np.zeros(grid_blocks, np.int64)
        self.first_warp = 0
        self.known = np.zeros((0, warps), np.int64)
        # what a warp knew at its last fence of .cta scope or wider, and at its last wider one
        self.fenced = np.zeros((2, 0, warps), np.int64)
        self.fences = False
        self.met = np.zeros(0, np.int64)
        self.pairs: Array | None = None
        self.floor = self.met_floor = 0
        self.history: list[Any] = [None, None]

    def tick(self, what: Any) -> int:
        """The time of a new access; `what` is the instruction that makes it."""
        self.time += 1
        self.history.append(what)
        return self.time

    def ticks(self, what: Sequence[Any]) -> int:
        """The first of as many times as there are accesses, one after the other."""
        first = self.time + 1
        self.time += len(what)
        self.history.extend(what)
        return first

    def batch(self, first_block: int, blocks: int) -> None:
        """Begin with the next blocks of the grid."""
        self.first_warp = first_block * self.warps
        self.known = np.zeros((blocks * self.warps, self.warps), np.int64)
        self._itself()
        self.fenced = np.zeros((2, blocks * self.warps, self.warps), np.int64)
        self.met = np.zeros(blocks * self.warps, np.int64)
        self.pairs = None
        self.floor = self.met_floor = 0

    def held(self) -> tuple[Any, ...]:
        """What belongs to the batch, for when it goes on after another."""
        own = self.first_warp, self.known, self.fenced, self.floor, self.met, self.met_floor
        return *own, self.pairs

    def resume(self, held: tuple[Any, ...]) -> None:
        """Go on with a batch."""
        (
            self.first_warp,
            self.known,
            self.fenced,
            self.floor,
            self.met,
            self.met_floor,
            self.pairs,
        ) = held

    def knowledge(self, warps: Array) -> Array:
        """What these warps of the batch know now, of themselves all that they did: (warps, warps of a block)."""
        rows: Array = np.minimum(self.known[warps], self.time)
        return rows

    def fence(self, warps: Array, *, wide: bool) -> None:
        """Warps of the batch executed a fence; wide: of more than .cta scope."""
        self.fences = True
        self.fenced[: 1 + wide, warps] = self.knowledge(warps)

    def publish(self, warps: Array, *, releases: bool, everywhere: bool) -> None:
        """Warps of the batch made a strong write: in global memory (everywhere), or in shared memory."""
        block = (warps + self.first_warp) // self.warps
        rows = self.knowledge(warps)
        for scope in range(1 + everywhere):
            np.maximum.at(self.shown[scope], block, rows if releases else self.fenced[scope, warps])

    def look(self, warps: Array) -> None:
        """Warps of the batch made a strong read."""
        shown = self.shown[0, (warps + self.first_warp) // self.warps]
        self.known[warps] = np.maximum(self.known[warps], shown)

    def _itself(self) -> None:
        # row by row: the n-th warp's own column is n modulo the warps of a block
        self.known.reshape(-1, self.warps * self.warps)[:, :: self.warps + 1] = FOREVER

    def everyone(self, complete: Array) -> None:
        """All warps of these blocks met at a barrier. complete: (blocks,) bool."""
        self.tick(None)
        # what each fenced is fenced by all: a fence in front of a barrier, an atomic of one thread behind it
        if self.fences:
            fenced = self.fenced.reshape(2, len(complete), self.warps, self.warps)
            fenced[:, complete] = fenced[:, complete].max(2, keepdims=True)
        if complete.all():
            self.known[:] = self.floor = self.time
            self.met[:] = self.met_floor = self.time
            self.pairs = None
        else:
            self.known.reshape(len(complete), self.warps, self.warps)[complete] = self.time
            self.met.reshape(len(complete), self.warps)[complete] = self.time
            self._pair(np.nonzero(np.repeat(complete, self.warps))[0])
        self._itself()

    def lanes(self, warps: Array) -> None:
        """All lanes of each of these warps that run met, by bar.warp.sync."""
        self.tick(None)
        self.met[warps] = self.time
        self.met_floor = int(self.met.min())
        self._pair(warps)

    def part(self, warp: int, lanes: Array) -> None:
        """Some lanes of a warp met, by bar.warp.sync: each knows what one of them knew, and what they did."""
        self.tick(None)
        if self.pairs is None:
            self.pairs = np.repeat(self.met, LANES * (LANES + 1)).reshape(-1, LANES, LANES + 1)
        mine = self.pairs[warp]
        mine[lanes] = mine[lanes].max(0)
        mine[np.ix_(lanes, lanes)] = self.time
        mine[lanes, SEVERAL] = self.time

    def _pair(self, warps: Array) -> None:
        if self.pairs is not None:
            self.pairs[warps] = self.time

    def between(self, warp: Array, lane: Array, other: Array) -> Array:
        """Up to when lanes know what other lanes of their warps did; of several, what was done by any of those it met."""
        met: Array = self.met[warp] if self.pairs is None else self.pairs[warp, lane, other]
        return met

    def meet(self, warps: Array, learners: Array, arrived: Mapping[int, Array]) -> None:
        """Some warps of one block met; the learners among them now know what all of them know.

        arrived: what those knew that only arrived, when they did: what they did since is not ordered.
        """
        self.tick(None)
        rows = self.knowledge(warps)
        for i, warp in enumerate(warps.tolist()):
            rows[i] = arrived.get(warp, rows[i])
        self.known[learners] = np.maximum(self.known[learners], rows.max(0))
        self.fenced[:, learners] = self.fenced[:, warps].max(1, keepdims=True)
        self._itself()
        # who only arrived goes on
        self.met[learners] = self.time
        self._pair(learners)

    def before(self, who: Array, when: Array, me: Array) -> Array:
        """Whether accesses of warps `who` at `when` are ordered before the present ones of `me` (warps of the grid)."""
        block, mine = who // self.warps, me // self.warps
        row = me - self.first_warp
        within = (block == mine) & (when <= self.known[row, who % self.warps])
        shown = self.shown[1].reshape(-1)[who] >= when
        across = (block != mine) & shown & (self.acquired[mine] > when)
        ordered: Array = within | across
        return ordered
