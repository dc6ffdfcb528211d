"""An instruction of the table against the model of one lane, on edges and random bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import ptx_model
from numpy.typing import NDArray

from contract.engines.ptx import table
from contract.engines.ptx.opcode import Row

TYPES: dict[str, Any] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
}
LANES = 160


def samples(*rows: tuple[Row, ...]) -> list[str]:
    """The opcodes that a test of these rows runs through."""
    return [opcode for module in rows for row in module for opcode in row.samples()]


def arrays(opcode: str, count: int = LANES) -> list[NDArray[Any]]:
    """Operands of an instruction."""
    sources = table.find(opcode).sources
    columns = ptx_model.operands(opcode, sources, count)
    return [np.array(c, TYPES[s]) for c, s in zip(columns, sources, strict=True)]


def run(opcode: str, *sources: NDArray[Any], **options: Any) -> tuple[NDArray[Any], ...]:
    """The results of an instruction, which must have the declared types."""
    semantics = table.find(opcode)
    found = semantics.call(*sources, **options)
    results = found if isinstance(found, tuple) else (found,)
    assert [r.dtype for r in results] == [TYPES[r] for r in semantics.results]
    return results


def check(opcode: str, count: int = LANES) -> None:
    """Every lane equals the model, and no source was changed."""
    sources = arrays(opcode, count)
    before = [x.copy() for x in sources]
    results = run(opcode, *sources)
    assert all(np.array_equal(x, y) for x, y in zip(sources, before, strict=True))
    for lane in range(count):
        operands = tuple(x[lane].item() for x in sources)
        got = tuple(r[lane].item() for r in results)
        want = ptx_model.expected(opcode, operands)
        assert got == want, f"{opcode} of {shown(operands)}: got {shown(got)}, want {shown(want)}"


def shown(values: tuple[Any, ...]) -> str:
    """Values as hexadecimal bits."""
    return ", ".join(str(x) if isinstance(x, bool) else hex(x) for x in values)
