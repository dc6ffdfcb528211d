"""Reads that race with a write: what they gave is undefined, which is a fault where it becomes visible.

Compilers let warps load copies of what another warp overwrites and never use them (Triton's replicated tiles). On a
device such a read gives the old or the new value, so that a launch with racing reads is run again from the memory it
found, with what they read as values that were never defined (contract.engines.ptx.undefined). If none becomes visible,
the launch does the same whichever value they get.

A read is told by its instruction, its warp and its bytes: of one that a loop repeats on the same bytes all are meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.decoded import Instruction
from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.memory import Bytes

Array = NDArray[Any]
# a run that has found so many is ended: what they do shows in the next
MOST_FOUND = 1 << 18


class Undefined(PtxFault):
    """A value that is not defined became visible."""


class Enough(Exception):
    """So many racing reads that the run is not worth going on with."""


@dataclass(slots=True)
class Reader:
    """An instruction whose reads race.

    Attributes:
        message: the first race, with both instructions.
        keys: of each memory, its warps and bytes as numbers, sorted.
    """

    message: str
    keys: dict[int, Array] = field(default_factory=dict)


class Racing:
    """The racing reads of a launch.

    Attributes:
        readers: by the identity of the instruction: those whose reads are undefined in this run.
        found: those that this run adds.
        reads: how many reads of single lanes were undefined in this run for that reason.
        only: the one reader that counts; all, for None.
        contended: whether lanes stored different values to one place of shared memory at once.
    """

    def __init__(self) -> None:
        self.readers: dict[int, Reader] = {}
        self.found: dict[int, Reader] = {}
        self.reads = 0
        self.only: int | None = None
        self.contended = False
        self._pending = 0

    def undefined(
        self, instruction: Instruction | None, memory: Bytes, g: Array, warp: Array
    ) -> Array | None:
        """Which reads of these granules by these warps of the grid are undefined; None for none."""
        reader = self.readers.get(id(instruction))
        if reader is None or self.only not in (None, id(instruction)):
            return None
        keys = reader.keys.get(memory.address)
        if keys is None:
            return None
        mine = _keys(memory, g, warp)
        at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
        found: Array = keys[at] == mine
        return found if found.any() else None

    def add(
        self,
        instruction: Instruction,
        memory: Bytes,
        g: Array,
        warp: Array,
        message: Callable[[], str],
    ) -> None:
        """Note reads that race; what is known already is none."""
        keys = _keys(memory, g, warp)
        known = self.readers.get(id(instruction))
        if known is not None and memory.address in known.keys:
            keys = keys[~np.isin(keys, known.keys[memory.address])]
        if not len(keys):
            return
        reader = self.found.get(id(instruction))
        if reader is None:
            reader = self.found[id(instruction)] = Reader(message())
        held = reader.keys.get(memory.address)
        reader.keys[memory.address] = keys if held is None else np.concatenate([held, keys])
        self._pending += len(keys)
        if self._pending > MOST_FOUND:
            raise Enough

    def merge(self) -> None:
        """Let the reads that were found be undefined from now on."""
        for number, new in self.found.items():
            reader = self.readers.setdefault(number, Reader(new.message))
            for address, keys in new.keys.items():
                held = reader.keys.get(address)
                every = keys if held is None else np.concatenate([held, keys])
                reader.keys[address] = np.unique(every)
        self.start()

    def start(self) -> None:
        """Begin a run."""
        self.found = {}
        self._pending = self.reads = 0


def _keys(memory: Bytes, g: Array, warp: Array) -> Array:
    """A number for each pair of a warp and a granule. Shared memory: a warp of the grid says which block's."""
    return warp.astype(np.int64) * ((len(memory.view) >> memory.shift) + 1) + g
