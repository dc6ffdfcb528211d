"""Registers of which some bytes are undefined: what a load gave of memory that was written in part.

A register that is undefined in a lane (Batch.poison) is so in all its bytes, unless Batch.partly says in which.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.batch import Batch
from contract.engines.ptx.decoded import UNSIGNED, Instruction
from contract.engines.ptx.memory import Bytes

Array = NDArray[Any]
ALL = 0xFF
# the bits of the bytes that a mask of eight names
_BITS = np.array(
    [sum(0xFF << 8 * i for i in range(8) if mask >> i & 1) for mask in range(256)], np.uint64
)


def loaded(b: Batch, memory: Bytes, at: Array, size: int, k: int) -> Array | None:
    """Which bytes are undefined of each of k elements that accesses of `size` bytes read, (accesses, k) masks; None where
    that is not known: all."""
    # a read that races is undefined as a whole
    if memory.defined is None or b.racing.readers:
        return None
    g, each = memory.granules(at, size)
    by_byte = np.repeat(~memory.defined[g].reshape(len(at), each), size // each, axis=1)
    weights = 1 << np.arange(size // k)
    return np.asarray((by_byte.reshape(len(at), k, size // k) @ weights).astype(np.uint8))


def undefined_bytes(b: Batch, index: int) -> Array:
    """Of every lane the undefined bytes of a register, as a mask."""
    bad = b.poison.get(index)
    if bad is None:
        return np.zeros(1, np.uint8)
    known = b.partly.get(index)
    return np.where(bad, ALL if known is None else known, 0).astype(np.uint8)


def undefined_bits(b: Batch, index: int) -> Array:
    """The same as bits, in the register's own width."""
    dtype = UNSIGNED[b.program.widths[index]]
    mask = undefined_bytes(b, index)
    return np.asarray(mask != 0 if dtype == bool else _BITS[mask].astype(dtype))


def chosen(b: Batch, instruction: Instruction) -> Array:
    """prmt with a selector that takes defined bytes alone: the lanes. Other modes choose by values."""
    _, low, high, selector = instruction.operands
    if instruction.parts != ["b32"]:
        return np.zeros(b.lanes, bool)
    (_, first), (_, second), (which, undecided) = (_of(b, what) for what in (low, high, selector))
    taken = first.astype(np.uint32) & 0xF | (second.astype(np.uint32) & 0xF) << 4
    bad = undecided != 0
    for i in range(4):
        bad = bad | (taken >> (which >> np.uint32(4 * i) & np.uint32(7)) & 1).astype(bool)
    return np.asarray(~bad)


def _of(b: Batch, what: Any) -> tuple[Array, Array]:
    """A source of 32 bits: its value and its undefined bytes."""
    index = getattr(what, "index", None)
    if index is None:
        return b.regs[b.program.slots[what, 32]], np.zeros(1, np.uint8)
    return b.regs[index], undefined_bytes(b, index)
