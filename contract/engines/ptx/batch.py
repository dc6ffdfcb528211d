"""Lanes that are executed together: their registers, which of them are active, what of them is undefined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.decoded import (
    UNSIGNED,
    Constant,
    Instruction,
    Parameter,
    Place,
    Program,
    Special,
    constant_bits,
)
from contract.engines.ptx.faults import PtxFault, Unsupported
from contract.engines.ptx.memory import Space, Window
from contract.engines.ptx.races import Order, SharedShadow
from contract.engines.ptx.racing import Racing, Undefined

if TYPE_CHECKING:
    from contract.engines.ptx.copies import Copies
    from contract.engines.ptx.schedule import Schedule

Array = NDArray[Any]
WARP = 32


class Mask:
    """Active lanes.

    Attributes:
        full: all lanes that still run are active, so that a register may be replaced as a whole.
    """

    __slots__ = ("_index", "count", "full", "lanes")

    def __init__(self, lanes: Array, count: int, full: bool) -> None:
        self.lanes, self.count, self.full = lanes, count, full
        self._index: Array | None = None

    @property
    def index(self) -> Array | None:
        """The numbers of the active lanes; None for all there are."""
        if self._index is None and self.count < len(self.lanes):
            self._index = np.nonzero(self.lanes)[0]
        return self._index


class Batch:
    """Some blocks of a grid, all their threads side by side; each block takes whole warps of 32 lanes."""

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        first: int,
        count: int,
        parameters: Array,
        window: Window,
        order: Order,
        racing: Racing,
        dynamic_shared: int,
        skew: int,
    ) -> None:
        self.program, self.grid, self.block = program, grid, block
        self.first, self.blocks, self.skew = first, count, skew
        self.grid_blocks = grid[0] * grid[1] * grid[2]
        self.window, self.order, self.parameters = window, order, parameters
        self.racing = racing
        self.threads = block[0] * block[1] * block[2]
        self.warps = -(-self.threads // WARP)
        self.padded = self.warps * WARP
        self.lanes = count * self.padded
        lane = np.arange(self.lanes)
        self.lane = lane
        self.thread = lane % self.padded
        self.owner = lane // self.padded
        self.warp = lane // WARP
        self.local_warp = (self.warp % self.warps).astype(np.int32)
        self.grid_warp = (self.warp + first * self.warps).astype(np.int32)
        self.exited = self.thread >= self.threads
        self.live = int(np.count_nonzero(~self.exited))
        self.now: Instruction | None = None
        self.regs: list[Any] = [None] * program.slot_count
        self.poison: dict[int, Array] = {}
        # of undefined registers the bytes that are, where these are not all (contract.engines.ptx.partly)
        self.partly: dict[int, Array] = {}
        self.carry: Array = np.zeros(1, bool)
        self._fill(dynamic_shared)
        self.copies: Copies | None = None
        # partners of shfl, which are the same each time
        self.exchanges: dict[Any, tuple[Array, Array]] = {}
        self.schedule: Schedule

    def _fill(self, dynamic_shared: int) -> None:
        program = self.program
        self.shared_bytes = program.shared_total(dynamic_shared)
        self.shared = Space(
            "shared memory", self.blocks, self.shared_bytes, self.owner, program.granules["shared"]
        )
        self.shared.shadow = SharedShadow(len(self.shared.view) >> self.shared.shift, self.warps)
        if program.uses_copies:
            self.shared.flight = np.zeros(len(self.shared.view) >> self.shared.shift, bool)
        self.local = Space(
            "local memory", self.lanes, program.local_bytes, self.lane, program.granules["local"]
        )
        self.param = Space(
            "the parameters", 1, len(self.parameters), np.zeros(self.lanes, np.int64), 1
        )
        self.param.view[: len(self.parameters)] = self.parameters
        self.param.defined = None
        for i in program.undefined:
            self.regs[i] = np.zeros(self.lanes, UNSIGNED[program.widths[i]])
            self.poison[i] = np.ones(self.lanes, bool)
        for (what, bits), slot in program.slots.items():
            held = program.constants.get(slot)
            if held is None:
                held = self._value(what, bits)
                if isinstance(what, Constant):
                    program.constants[slot] = held
            self.regs[slot] = held

    def _value(self, what: Any, bits: int) -> Array:
        dtype = UNSIGNED[bits]
        if isinstance(what, Constant):
            return np.array([constant_bits(what, bits)], dtype)
        if isinstance(what, Place):
            base = self.program.dynamic_base if what.dynamic else 0
            return np.array([(base + what.address) & ((1 << bits) - 1)], dtype)
        if isinstance(what, Parameter):
            return np.array([what.offset & ((1 << bits) - 1)], dtype)
        if isinstance(what, tuple):
            # ("param", offset, dtype): bytes of the parameter block
            _, offset, stored = what
            raw = self.parameters[offset : offset + np.dtype(stored).itemsize]
            return raw.view(stored).copy()
        if isinstance(what, Special):
            return self._special(what.name).astype(dtype)
        raise AssertionError(what)

    def _special(self, name: str) -> Array:
        """Special registers; what depends on a device (its clocks, its multiprocessors) is not modelled.

        Source: PTX ISA, section 10 (Special Registers).
        """
        axis = "xyz".find(name[-1]) if name[-2:-1] == "." else -1
        which = name[:-2] if axis >= 0 else name
        block = self.first + self.owner
        if which in ("%tid", "%ntid", "%ctaid", "%nctaid") and axis >= 0:
            of_block = which in ("%tid", "%ntid")
            sizes, number = (self.block, self.thread) if of_block else (self.grid, block)
            if which.startswith("%n"):
                return np.array([sizes[axis]])
            below = int(np.prod(sizes[:axis], dtype=np.int64))
            found: Array = number // below % sizes[axis]
            return (
                found[:1] if sizes[axis] == 1 or (which == "%ctaid" and self.blocks == 1) else found
            )
        lane = self.lane % WARP
        simple = {
            "%laneid": lane,
            "%warpid": self.warp % self.warps,
            "%nwarpid": np.array([self.warps]),
            "WARP_SZ": np.array([WARP]),
            "%lanemask_eq": 1 << lane,
            "%lanemask_lt": (1 << lane) - 1,
            "%lanemask_le": (2 << lane) - 1,
            "%lanemask_gt": 0xFFFFFFFF ^ ((2 << lane) - 1),
            "%lanemask_ge": 0xFFFFFFFF ^ ((1 << lane) - 1),
            "%dynamic_smem_size": np.array([max(self.shared_bytes - self.program.dynamic_base, 0)]),
            "%total_smem_size": np.array([self.shared_bytes]),
        }
        if name not in simple:
            raise Unsupported(f"{self.program.name}: special register {name}")
        return simple[name]

    # registers

    def put(self, index: int, value: Array, mask: Mask) -> None:
        """A register's new value, of all lanes or (1,) for one that they share."""
        old = self.regs[index]
        if mask.full or old is None:
            self.regs[index] = value
        else:
            self.regs[index] = np.where(mask.lanes, value, old)

    def put_active(self, index: int, values: Array, mask: Mask) -> None:
        """The same with a value for each active lane."""
        at = mask.index
        if at is None:
            self.regs[index] = values
            return
        old = self.regs[index]
        if old is None or mask.full:
            new = np.zeros(self.lanes, values.dtype)
        else:
            new = np.array(np.broadcast_to(old, (self.lanes,)))
        new[at] = values
        self.regs[index] = new

    def wide(self, index: int) -> Array:
        """A register with a value for every lane."""
        value: Array = self.regs[index]
        return value if len(value) == self.lanes else np.broadcast_to(value, (self.lanes,))

    def active(self, value: Array, mask: Mask) -> Array:
        """Of an array of all lanes, or of one value, those of the active ones."""
        if len(value) != self.lanes:
            return np.broadcast_to(value, (mask.count,))
        return value if mask.index is None else value[mask.index]

    def narrow(self, mask: Mask, predicate: Array, negated: bool) -> Mask | None:
        """The lanes of the mask for which the predicate holds; None for none."""
        lanes = mask.lanes & ~predicate if negated else mask.lanes & predicate
        count = int(np.count_nonzero(lanes))
        if count == mask.count:
            return mask
        return Mask(lanes, count, False) if count else None

    # what goes wrong

    def fault(self, message: str, lane: int) -> NoReturn:
        """Raise PtxFault for the instruction that is being executed."""
        raise PtxFault(f"{self.where()}: {message}; {self.who(lane)}")

    def visible(self, message: str, lane: int) -> NoReturn:
        """Raise Undefined for a value that the instruction being executed makes visible."""
        raise Undefined(f"{self.where()}: {message}; {self.who(lane)}")

    def where(self, instruction: Instruction | None = None) -> str:
        shown = instruction or self.now
        assert shown is not None
        return f"{self.program.name}, {self.program.line(shown)}, `{shown.text}`"

    def who(self, lane: int) -> str:
        """A lane in words: thread, block and warp."""
        thread, block = int(self.thread[lane]), self.first + int(self.owner[lane])
        return f"thread {self._place(thread, self.block)} of block {self._place(block, self.grid)}, warp {thread // WARP}"

    def _place(self, number: int, sizes: tuple[int, int, int]) -> str:
        x, y, z = sizes
        return f"({number % x}, {number // x % y}, {number // (x * y) % z})"

    def warp_of_grid(self, number: int) -> str:
        """A warp in words, by its number in the grid."""
        block, warp = divmod(number, self.warps)
        return f"warp {warp} of block {self._place(block, self.grid)}"

    # undefined values

    def set_poison(self, index: int, bad: Array | None, mask: Mask) -> None:
        """What is undefined of a register just written under the mask. bad: of all lanes; None for nothing."""
        old = self.poison.get(index)
        if old is None and bad is None:
            return
        self.partly.pop(index, None)
        new = np.zeros(self.lanes, bool) if old is None or mask.full else old & ~mask.lanes
        if bad is not None:
            new |= bad & mask.lanes
        if new.any():
            self.poison[index] = new
        else:
            self.poison.pop(index, None)
