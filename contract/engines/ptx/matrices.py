"""8x8 matrices of 16-bit elements between shared memory and the registers of a warp: ldmatrix, stmatrix, movmatrix.

Lanes 8i to 8i+7 give the addresses of the rows of matrix i; lane l holds elements 2*(l%4) and 2*(l%4)+1 of row l/4.

Source: PTX ISA, sections 9.7.14.5.15 (ldmatrix), 9.7.14.5.16 (stmatrix), 9.7.14.5.17 (movmatrix).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import several
from contract.engines.ptx.accesses import (
    Run,
    Shape,
    malformed,
    owned,
    undefined,
    unsupported,
    where,
)
from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import (
    Instruction,
    Kin,
    Memory,
    Place,
    Program,
    Register,
    Vector,
)
from contract.engines.ptx.memory import WINDOWS
from contract.engines.ptx.noting import note_read, write

Array = NDArray[Any]
ROW_BYTES = 16
# of one instruction, at most
MATRICES = 4


def whole_warps(b: Batch, m: Mask) -> Array:
    """The numbers of the active warps; all 32 lanes of each must be."""
    by_warp = m.lanes.reshape(-1, 32)
    some, every = by_warp.any(1), by_warp.all(1)
    if not np.array_equal(some, every):
        warp = int(np.nonzero(some & ~every)[0][0])
        b.fault("executed by some lanes of a warp only", warp * 32 + int(np.argmax(by_warp[warp])))
    found: Array = np.nonzero(some)[0]
    return found


class _Form:
    """What an ldmatrix or stmatrix moves, and where its rows lie."""

    def __init__(
        self, program: Program, instruction: Instruction, memory: Any, registers: Any
    ) -> None:
        parts = instruction.parts
        plain = [p for p in parts if p != "trans"]
        if (
            plain[:3] != ["sync", "aligned", "m8n8"]
            or len(plain) not in (5, 6)
            or plain[3] not in ("x1", "x2", "x4")
        ):
            raise unsupported(instruction)
        if plain[4:] not in (["b16"], ["shared", "b16"], ["shared::cta", "b16"]):
            raise unsupported(instruction)
        self.trans, self.k = "trans" in parts, int(plain[3][1:])
        items = registers.items if isinstance(registers, Vector) else (registers,)
        if len(items) != self.k or any(not isinstance(r, Register) or r.width != 32 for r in items):
            raise malformed(instruction, f"{self.k} registers of 32 bits")
        self.registers = tuple(r.index for r in items)
        # an address without a space is generic
        self.generic = len(plain) == 5
        if isinstance(memory, Memory) and isinstance(memory.base, Place):
            self.generic = False
        shape = Shape(
            Instruction("ld.shared.b16", (), None, False, instruction.line, instruction.text)
        )
        self.address = where(program, memory, shape, instruction)
        program.granules["shared"] = min(program.granules["shared"], ROW_BYTES)

    def rows(self, b: Batch, m: Mask, warps: Array) -> tuple[Array, Array, Array | None]:
        """Positions in shared memory of the rows, the lanes that gave them, and those lanes as a mask."""
        lanes = (warps[:, None] * 32 + np.arange(8 * self.k)).ravel()
        address = np.broadcast_to(self.address(b), (b.lanes,))[lanes]
        if self.generic:
            address = address - np.uint64(WINDOWS["shared"])
        if (address & np.uint64(ROW_BYTES - 1)).any():
            bad = int(np.nonzero(address & np.uint64(ROW_BYTES - 1))[0][0])
            b.fault(
                f"address {int(address[bad])} of a row is misaligned for 16 bytes", int(lanes[bad])
            )
        chosen = lanes if m.index is None else np.searchsorted(m.index, lanes)
        _, _, at = owned(b, m, address, ROW_BYTES, b.shared, chosen)
        return at, lanes, chosen


def _spread(tiles: Array, trans: bool) -> Array:
    """(warps, k, 8, 8) elements to (warps, k, 32) registers."""
    if trans:
        tiles = tiles.transpose(0, 1, 3, 2)
    return np.ascontiguousarray(tiles).view(np.uint32).reshape(*tiles.shape[:2], 32)


def _give(
    b: Batch, m: Mask, warps: Array, registers: tuple[int, ...], values: Array, bad: Array | None
) -> None:
    for i, index in enumerate(registers):
        if m.index is None:
            b.put(index, np.ascontiguousarray(values[:, i]).reshape(-1), m)
        else:
            b.put_active(index, values[:, i].reshape(-1), m)
        if b.poison or bad is not None:
            spread = None
            if bad is not None:
                spread = np.zeros((b.lanes // 32, 32), bool)
                spread[warps] = bad[:, i]
            b.set_poison(index, None if spread is None else spread.ravel(), m)


def ldmatrix(program: Program, instruction: Instruction) -> Run:
    """ldmatrix.sync.aligned.m8n8.x1, .x2, .x4, with or without .trans, of b16."""
    if len(instruction.operands) != 2:
        raise malformed(instruction, "registers and an address")
    form = _Form(program, instruction, instruction.operands[1], instruction.operands[0])

    def run(b: Batch, m: Mask) -> None:
        warps = whole_warps(b, m)
        at, lanes, _ = form.rows(b, m, warps)
        fresh = note_read(b, b.shared, at, ROW_BYTES, lanes, False)
        tiles = b.shared.take(at, np.uint16, 8).reshape(len(warps), form.k, 8, 8)
        bad = None
        if fresh is not None:
            rows = np.broadcast_to(fresh.reshape(len(warps), form.k, 8, 1), tiles.shape)
            bad = _spread(rows.astype(np.uint16), form.trans) != 0
        _give(b, m, warps, form.registers, _spread(tiles, form.trans), bad)

    instruction.propagates = False
    if form.k == MATRICES:
        instruction.kin = Kin(("ldmatrix", form.trans), (instruction, form), _joined)
    return run


def _joined(parts: list[tuple[Instruction, _Form]]) -> Callable[[Batch], bool]:
    """Several ldmatrix of four matrices: all lanes give addresses."""
    members, forms = [one for one, _ in parts], [form for _, form in parts]
    count, trans = len(parts), forms[0].trans

    def run(b: Batch) -> bool:
        if not several.fit(b, count):
            return False
        address = several.stacked(b, [form.address(b) for form in forms], np.uint64)
        for row, form in zip(address, forms, strict=True):
            if form.generic:
                row -= np.uint64(WINDOWS["shared"])
        at = several.placed(b, address, ROW_BYTES)
        if at is None or not several.shared_read(b, members, at, ROW_BYTES):
            return False
        tiles = b.shared.take(at, np.uint16, 8).reshape(-1, MATRICES, 8, 8)
        values = _spread(tiles, trans).reshape(count, -1, MATRICES, 32).swapaxes(1, 2)
        columns = np.ascontiguousarray(values).reshape(count, MATRICES, -1)
        for form, rows in zip(forms, columns, strict=True):
            for index, row in zip(form.registers, rows, strict=True):
                b.regs[index] = row
        return True

    return run


def stmatrix(program: Program, instruction: Instruction) -> Run:
    """stmatrix: the reverse of ldmatrix."""
    if len(instruction.operands) != 2:
        raise malformed(instruction, "an address and registers")
    form = _Form(program, instruction, instruction.operands[0], instruction.operands[1])

    def run(b: Batch, m: Mask) -> None:
        warps = whole_warps(b, m)
        at, lanes, _ = form.rows(b, m, warps)
        held = np.stack([b.wide(r).reshape(-1, 32)[warps] for r in form.registers], 1)
        tiles = np.ascontiguousarray(held).view(np.uint16).reshape(len(warps), form.k, 8, 8)
        if form.trans:
            tiles = np.ascontiguousarray(tiles.transpose(0, 1, 3, 2))
        bad = None
        if b.poison and undefined(b, form.registers, m) is not None:
            none = np.zeros(b.lanes, bool)
            marks = [b.poison.get(r, none).reshape(-1, 32)[warps] for r in form.registers]
            spread = np.repeat(np.stack(marks, 1).reshape(len(warps), form.k, 8, 4), 2, 3)
            bad = (spread.transpose(0, 1, 3, 2) if form.trans else spread).any(3).ravel()
        write(b, b.shared, at, ROW_BYTES, lanes, tiles.reshape(-1, 8), bad)

    instruction.propagates = False
    return run


def movmatrix(program: Program, instruction: Instruction) -> Run:
    """movmatrix.sync.aligned.m8n8.trans.b16: an 8x8 matrix transposed across the registers of a warp."""
    if instruction.parts != ["sync", "aligned", "m8n8", "trans", "b16"]:
        raise unsupported(instruction)
    if len(instruction.operands) != 2 or any(
        not isinstance(r, Register) or r.width != 32 for r in instruction.operands
    ):
        raise malformed(instruction, "two registers of 32 bits")
    to, what = instruction.operands

    def run(b: Batch, m: Mask) -> None:
        warps = whole_warps(b, m)
        held = np.ascontiguousarray(b.wide(what.index).reshape(-1, 32)[warps])
        values = _spread(held.view(np.uint16).reshape(len(warps), 1, 8, 8), True)
        bad = None
        if what.index in b.poison:
            lanes = np.broadcast_to(
                b.poison[what.index].reshape(-1, 1, 32, 1)[warps], (len(warps), 1, 32, 2)
            )
            bad = _spread(lanes.astype(np.uint16).reshape(len(warps), 1, 8, 8), True) != 0
        _give(b, m, warps, (to.index,), values, bad)

    instruction.propagates = False
    return run
