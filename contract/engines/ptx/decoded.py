"""What a decoded entry is made of: operands, instructions, blocks, the program.

Everything a batch of lanes holds is a slot: registers first, then constants, parameters and special registers, each
once for every width that it is read at.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.faults import Malformed
from contract.engines.ptx.syntax import Function

UNSIGNED: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


@dataclass(frozen=True, slots=True)
class Register:
    index: int
    width: int


@dataclass(frozen=True, slots=True)
class Constant:
    """An immediate: `width` 0 for an integer, else the width of the floating-point constant in `bits`."""

    bits: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """Bytes of the parameter block of the launch."""

    offset: int


@dataclass(frozen=True, slots=True)
class Place:
    """A variable: its state space and its address there; `dynamic` is counted from the end of static shared memory."""

    space: str
    address: int
    dynamic: bool = False
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """[base + offset]"""

    base: Register | Place | Parameter | None
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Two:
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Negated:
    of: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Kin:
    """What an instruction may be executed at once with, where all lanes of a batch are at it.

    Attributes:
        kind: of the same kind are those that may be joined.
        part: what `join` takes of this one.
        join: from the parts of several, in their order, to what executes them all: `run(batch)` gives False, and has
            changed nothing, where something might be said of one of them; then they are executed one by one.
        guarded: what executes several looks at their predicates itself; others of these kinds have none.
    """

    kind: Any
    part: Any
    join: Callable[[list[Any]], Callable[[Any], bool]]
    guarded: bool = False


@dataclass(slots=True)
class Instruction:
    opcode: str
    operands: tuple[Any, ...]
    guard: Register | None
    negated: bool
    line: int
    text: str
    targets: tuple[int, ...] = ()
    reads: frozenset[int] = frozenset()
    writes: tuple[int, ...] = ()
    observed: frozenset[int] = frozenset()
    run: Callable[[Any, Any], None] | None = None
    propagates: bool = True
    approximate: bool = False
    kin: Kin | None = None

    @property
    def root(self) -> str:
        return self.opcode.split(".", 1)[0]

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")[1:]


@dataclass(slots=True)
class Together:
    """Instructions of one kind that do not depend on each other: see Kin. `touched` are the registers of all."""

    members: list[Instruction]
    touched: frozenset[int]
    run: Callable[[Any], bool]


@dataclass(slots=True)
class Block:
    """Instructions that lanes run through together; `end` may send lanes elsewhere, else they go on to the next.

    Attributes:
        steps: what all lanes of a batch do where they come here together: the instructions of this block and of those
            up to `last` (contract.engines.ptx.together).
        members: the slot of the member mask of the instruction of a warp that it begins with; -1 for none.
    """

    number: int
    body: list[Instruction]
    end: Instruction | None = None
    meets: bool = False
    gather: Callable[[Any, Any], Any] | None = None
    members: int = -1
    steps: list[Instruction | Together] = field(default_factory=list)
    last: int = 0


@dataclass(slots=True)
class GlobalVariable:
    """Memory of a .global or .const variable, at its real address."""

    name: str
    address: int
    view: NDArray[np.uint8]


@dataclass(slots=True)
class Program:
    """An entry ready to be launched; `layout` is filled while it is decoded.

    Attributes:
        polls: the numbers of the blocks of instructions that may wait for another block of the grid.
        sources: (line of the PTX, 'kernel.py:14') in order: from which line on what was made of which; '' for unknown.
        opcodes: those of its instructions, sorted; `tally` (blocks, opcodes) is how often each stands where.
        approximate, atomics: which of them are what Launched says.
        constants: of slots whose value is the same in every launch, what a batch holds.
    """

    name: str
    function: Function
    blocks: list[Block] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    slots: dict[tuple[Any, int], int] = field(default_factory=dict)
    slot_count: int = 0
    shared_bytes: int = 0
    dynamic_align: int = 16
    local_bytes: int = 0
    globals: list[GlobalVariable] = field(default_factory=list)
    undefined: frozenset[int] = frozenset()
    uses_copies: bool = False
    granules: dict[str, int] = field(default_factory=dict)
    polls: frozenset[int] = frozenset()
    sources: list[tuple[int, str]] = field(default_factory=list)
    opcodes: tuple[str, ...] = ()
    tally: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    approximate: frozenset[str] = frozenset()
    atomics: frozenset[str] = frozenset()
    constants: dict[int, NDArray[Any]] = field(default_factory=dict)

    def slot(self, what: Any, bits: int) -> int:
        """The slot that holds an operand at a width; of a register its own."""
        if isinstance(what, Register):
            return what.index
        key = (what, bits)
        if key not in self.slots:
            self.slots[key] = self.slot_count
            self.slot_count += 1
        return self.slots[key]

    def line(self, instruction: Instruction) -> str:
        """Where an instruction stands, and where the compiler says it comes from: 'line 132, kernel.py:14'."""
        at = bisect.bisect_right(self.sources, instruction.line, key=lambda one: one[0])
        source = self.sources[at - 1][1] if at else ""
        return f"line {instruction.line}" + (f", {source}" if source else "")

    @property
    def dynamic_base(self) -> int:
        return -(-self.shared_bytes // self.dynamic_align) * self.dynamic_align

    def shared_total(self, dynamic: int) -> int:
        """Bytes of shared memory of a block: what is in front of the dynamic part counts only where there is one."""
        return self.dynamic_base + dynamic if dynamic else self.shared_bytes


def constant_bits(value: Constant, bits: int) -> int:
    """The immediate as it is read at a width: an integer cut, a floating-point constant converted."""
    if not value.width or value.width == bits:
        return value.bits & ((1 << bits) - 1)
    number = struct.unpack("<d", struct.pack("<Q", value.bits))[0] if value.width == 64 else None
    if number is None:
        # 0f... read at 64 bits: the bits of the float
        return value.bits
    if bits == 32:
        try:
            return int(struct.unpack("<I", struct.pack("<f", number))[0])
        except OverflowError:
            return 0x7F800000 if number > 0 else 0xFF800000
    raise Malformed(f"a floating-point constant where {bits} bits are read")
