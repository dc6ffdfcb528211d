"""The one table of instructions: every pure function of registers that the executor knows.

Each module holds the rows of its own functions; a spelling belongs to one row.
Memory, control flow, barriers, special registers and addresses belong to the machine.
"""

from __future__ import annotations

import functools
from typing import Any

from contract.engines.ptx import (
    approximate,
    bitwise,
    compare,
    convert,
    floats,
    halves,
    integers,
    matrix,
)
from contract.engines.ptx.bitwise import pack, unpack
from contract.engines.ptx.faults import Unsupported
from contract.engines.ptx.opcode import Row, Semantics

__all__ = ["ROWS", "Semantics", "find", "opcodes", "pack", "unpack"]

ROWS: tuple[Row, ...] = (
    *integers.ROWS,
    *bitwise.ROWS,
    *compare.ROWS,
    *floats.ROWS,
    *halves.ROWS,
    *convert.ROWS,
    *approximate.ROWS,
    *matrix.ROWS,
)


@functools.cache
def _spellings(mnemonic: str) -> dict[str, tuple[Row, dict[str, Any]]]:
    """Opcode to row and fields, of all rows of one mnemonic."""
    rows = [row for row in ROWS if row.mnemonic == mnemonic]
    return {opcode: (row, fields) for row in rows for opcode, fields in row.spellings()}


@functools.cache
def find(opcode: str) -> Semantics:
    """What the instruction computes; Unsupported where no row has exactly this spelling."""
    known = _spellings(opcode.partition(".")[0])
    if opcode not in known:
        raise Unsupported(
            f"{opcode}: {'these modifiers are' if known else 'this instruction is'} not known"
        )
    row, fields = known[opcode]
    return row.build(**fields)


def opcodes() -> tuple[str, ...]:
    """Opcodes of every row in which every value of every modifier occurs."""
    return tuple(opcode for row in ROWS for opcode in row.samples())
