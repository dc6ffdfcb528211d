"""Loads through the non-coherent cache: of memory that nobody may write while the kernel runs, before the load or after.

Source: PTX ISA, sections 9.7.9 (ld.global.nc, ldu: read-only data); CUDA C++ Programming Guide, Read-Only Data Cache Load
Function.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.batch import Batch
from contract.engines.ptx.decoded import Instruction, Program
from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.memory import Region, Window
from contract.engines.ptx.races import GlobalShadow, Order

Array = NDArray[Any]


def is_one(instruction: Instruction) -> bool:
    """Whether it is such a load."""
    return instruction.root == "ldu" or "nc" in instruction.parts


def note(b: Batch, region: Region, at: Array, size: int) -> None:
    """Note accesses of the load that was noted last as a read."""
    g, _ = region.granules(at, size)
    if region.constant is None:
        region.constant = np.zeros((len(region.view) >> region.shift) + 1, np.int64)
    region.constant[g] = b.order.time


def check(program: Program, window: Window, order: Order, warps: int) -> None:
    """Raise PtxFault where a launch, which is over, has written what it read so. warps: of a block."""
    for region in window.regions:
        shadow = region.shadow
        if region.constant is None or not isinstance(shadow, GlobalShadow) or shadow.reads is None:
            continue
        writes = [(shadow.writer, shadow.written)]
        if shadow.atomics is not None:
            writes.append((shadow.atomics.who[0], shadow.atomics.when[0]))
        for who, when in writes:
            both = np.nonzero((region.constant > 0) & (who >= 0))[0]
            if len(both):
                g = both[0]
                load, write = order.history[region.constant[g]], order.history[when[g]]
                block, warp = divmod(int(who[g]), warps)
                raise PtxFault(
                    f"{program.name}, {program.line(load)}, `{load.text}`: reads {region.name} through the non-coherent"
                    f" cache (__ldg, const __restrict__ in CUDA), and `{write.text}` ({program.line(write)}) of this launch"
                    f" writes it, {int(g) << region.shift} bytes from its start; warp {warp} of block number {block}"
                )
