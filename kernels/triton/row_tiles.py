"""What row kernels share: the tile of a row width, and the depth of its sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Widest row that one program holds in registers: 16 values a thread, 32 warps.
WIDEST = 16_384
#: Most additions that one term goes through in a row sum of a tile: 15 in a thread of 16 values, log2(32) shuffles in a
#: warp, log2(32) steps over its warps.
DEPTH = 15 + 5 + 5


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def row_tile(d: int) -> dict[str, int]:
    """BLOCK columns, ROWS rows of them and the warps of one program, by the width alone: a row's bits do not depend on how
    many there are.

    A thread holds 8 bf16 values (one 16-byte load) up to 2,048 columns, 16 beyond. Narrow rows share a program.
    """
    if d > WIDEST:
        raise ValueError(f"rows of {d} columns; one program holds at most {WIDEST}")
    block = power_of_two(d)
    rows = max(1, 1024 // block) if block <= 256 else 1
    each = 8 if block <= 2048 else 16
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(32, max(1, block * rows // (32 * each)))}


def by_rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor with its columns side by side, as every kernel reads it; rows may have gaps."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
