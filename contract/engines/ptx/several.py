"""Accesses of several instructions at once, all of one size and each by all lanes of a batch.

They are checked as contract.engines.ptx.noting checks one, all together, and noted only where nothing is to be said of
any: no race, nothing in flight, nothing undefined, no place out of bounds and, of writes, none that is written twice.
Everything else is for the instructions one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.batch import WARP, Batch
from contract.engines.ptx.decoded import Instruction
from contract.engines.ptx.memory import Region
from contract.engines.ptx.races import GlobalShadow, SharedShadow

Array = NDArray[Any]
# lanes of all instructions: more at once leave the cache
MOST_LANES = 1 << 14


def fit(b: Batch, count: int) -> bool:
    """Whether so many instructions are worth executing at once."""
    return count * b.lanes <= MOST_LANES


def stacked(b: Batch, given: Sequence[Array], dtype: Any) -> Array:
    """(instructions, lanes) from a value or one for each lane of each."""
    made = np.empty((len(given), b.lanes), dtype)
    for row, one in zip(made, given, strict=True):
        row[:] = one
    return made


def placed(b: Batch, address: Array, size: int) -> Array | None:
    """Where addresses (instructions, lanes) of shared memory lie in its bytes, in one row; None for a fault."""
    if (address & np.uint64(size - 1)).any() or int(address.max()) + size > b.shared.limit:
        return None
    at = address.view(np.int64)
    return (at if b.blocks == 1 else at + b.shared.base).ravel()


@dataclass(frozen=True, slots=True)
class By:
    """Of each granule that several instructions touch, one after the other: which touches it, by which lane and warp.

    Lanes and warps of the batch, and those of a warp and of a block.
    """

    number: Array
    lane: Array
    local_lane: Array
    warp: Array
    local_warp: Array


def _by(b: Batch, count: int, each: int) -> By:
    return _places(b.lanes, b.warps, count, each)


@functools.lru_cache(32)
def _places(lanes: int, warps: int, count: int, each: int) -> By:
    lane = np.repeat(np.tile(np.arange(lanes), count), each)
    warp = lane // WARP
    number = np.repeat(np.arange(count), lanes * each)
    return By(number, lane, (lane % WARP).astype(np.int8), warp, (warp % warps).astype(np.int32))


def lanes(b: Batch, count: int) -> Array:
    """The lane of each access of so many instructions."""
    return _by(b, count, 1).lane


def _quiet(b: Batch, g: Array, by: By, *, write: bool) -> bool:
    """Whether accesses to granules of shared memory meet nothing in flight and race with nothing before them."""
    shared = b.shared
    shadow = shared.shadow
    assert isinstance(shadow, SharedShadow)
    if b.racing.readers or (shared.flight is not None and shared.flight[g].any()):
        return False
    return not shadow.unordered(g, by.warp, by.local_lane, b.order, write=write, atomic=False)


def shared_read(b: Batch, members: Sequence[Instruction], at: Array, size: int) -> bool:
    """Note reads of shared memory by instructions one after the other; False, and nothing noted, for a finding."""
    shared, shadow = b.shared, b.shared.shadow
    g, each = shared.granules(at, size)
    by = _by(b, len(members), each)
    assert isinstance(shadow, SharedShadow)
    assert shared.defined is not None
    if not shared.defined[g].all() or not _quiet(b, g, by, write=False):
        return False
    first = b.order.ticks(members)
    last = first + len(members) - 1
    shadow.mark_read(g, by.local_warp, by.local_lane, by.number + first, last)
    return True


def shared_write(b: Batch, members: Sequence[Instruction], at: Array, size: int) -> Array | None:
    """Note writes of defined values; the granules, or None, and nothing noted, for a finding."""
    shared, shadow = b.shared, b.shared.shadow
    g, each = shared.granules(at, size)
    by = _by(b, len(members), each)
    assert isinstance(shadow, SharedShadow)
    assert shared.defined is not None
    if shadow.repeats(g) or not _quiet(b, g, by, write=True):
        return None
    shared.defined[g] = True
    first = b.order.ticks(members)
    last = first + len(members) - 1
    shadow.mark_write(g, by.local_warp, by.local_lane, by.number + first, last)
    return g


def region(b: Batch, address: Array, size: int) -> Region | None:
    """The region of global memory that all addresses lie in, aligned; None where there is none."""
    if (address & np.uint64(size - 1)).any():
        return None
    return b.window.find(int(address.min()), int(address.max()) + size)


def readable(b: Batch, memory: Region, at: Array, size: int) -> bool:
    """Whether nothing is to be said of reads of one region, (instructions, lanes) in one row."""
    g, each = memory.granules(at, size)
    if b.racing.readers or (memory.defined is not None and not memory.defined[g].all()):
        return False
    assert isinstance(memory.shadow, GlobalShadow)
    warp = b.grid_warp[_by(b, len(at) // b.lanes, each).lane]
    return not memory.shadow.unordered(g, warp, b.order, write=False, atomic=False)


def global_read(
    b: Batch, members: Sequence[Instruction], memory: Region, at: Array, size: int
) -> None:
    """Note reads of one region by instructions one after the other."""
    g, each = memory.granules(at, size)
    warp = b.grid_warp[_by(b, 1, each).lane]
    assert isinstance(memory.shadow, GlobalShadow)
    for member, row in zip(members, g.reshape(len(members), -1), strict=True):
        memory.shadow.mark_read(row, warp, b.order.tick(member), b.order.warps)


def global_write(
    b: Batch, members: Sequence[Instruction], memory: Region, at: Array, size: int
) -> bool:
    """Note writes of defined values to one region; False, and nothing noted, for a finding."""
    g, each = memory.granules(at, size)
    by = _by(b, len(members), each)
    shadow, warp = memory.shadow, b.grid_warp[by.lane]
    assert isinstance(shadow, GlobalShadow)
    # accesses have one size and are aligned by it, so that those that overlap begin at one place
    if b.racing.readers or len(np.unique(at)) < len(at):
        return False
    if shadow.unordered(g, warp, b.order, write=True, atomic=False):
        return False
    memory.keep()
    if memory.defined is not None:
        memory.defined[g] = True
    shadow.mark_write(g, warp, by.number + b.order.ticks(members), b.order.warps)
    return True
