"""What elementwise kernels share: tiles of rows of any width, and functions as exact as their contracts ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract.engines.deferred_jit import jit
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    tl = lazy("triton.language")

#: Columns of one program, and its warps: 8 values a thread, one 16-byte load of bf16.
BLOCK, WARPS = 1024, 4


def columns_grid(x: torch.Tensor, block: int = BLOCK) -> tuple[int]:
    """One program for every `block` columns of every row, on the axis that has no limit of 65,535."""
    rows, n = x.shape
    return (rows * -(-n // block),)


@jit
def tile(n: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The row and the columns of this program: consecutive programs take consecutive columns."""
    blocks = tl.cdiv(n, BLOCK)
    program = tl.program_id(0)
    row = program // blocks
    return row.to(tl.int64), (program - row * blocks) * BLOCK + tl.arange(0, BLOCK)


@jit
def wide(pointer: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Values in fp32, 0 where masked."""
    return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)


@jit
def rounded(x: tl.tensor, ROUND: tl.constexpr) -> tl.tensor:
    """An fp32 value rounded to bf16 and widened again where the profile rounds here."""
    if ROUND:
        return x.to(tl.bfloat16).to(tl.float32)
    else:
        return x
