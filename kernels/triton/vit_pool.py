"""3 x 3 pooling by position: a program looks through all positions, and reads the rows of the few patches that are its."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import rounded, wide
from contract.kernels.triton.row_tiles import by_rows, power_of_two
from contract.lazy import lazy
from contract.references.vit_pool import WINDOW

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

#: Patches looked at together, columns of a program, and its warps.
PATCHES, COLUMNS, WARPS = 32, 128, 4


@jit
def pool_kernel(
    x: tl.tensor,
    positions: tl.tensor,
    cells: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    patches: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    position_stride: tl.tensor,
    cell_stride: tl.tensor,
    root: tl.tensor,
    WINDOW: tl.constexpr,
    EACH: tl.constexpr,
    PATCHES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """COLUMNS columns of one cell; EACH rounds after every step behind the mean."""
    blocks = tl.cdiv(d, COLUMNS)
    row = tl.program_id(0) // blocks
    column = (tl.program_id(0) - row * blocks) * COLUMNS + tl.arange(0, COLUMNS)
    used = column < d
    cell = cells + row.to(tl.int64) * cell_stride
    cell_x, cell_y = tl.load(cell), tl.load(cell + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, patches, PATCHES):
        patch = (start + tl.arange(0, PATCHES)).to(tl.int64)
        place = positions + patch * position_stride
        place_x = tl.load(place, mask=patch < patches, other=-1)
        place_y = tl.load(place + 1, mask=patch < patches, other=-1)
        # -1 // 3 is 0 here, as in C
        mine = (place_x >= 0) & (place_y >= 0)
        mine = mine & (place_x // WINDOW == cell_x) & (place_y // WINDOW == cell_y)
        # most stretches hold no patch of this cell
        if tl.max(mine.to(tl.int32), 0) > 0:
            value = x + patch[:, None] * x_stride + column[None, :]
            total += tl.sum(wide(value, mine[:, None] & used[None, :]), 0)
    mean = rounded(tl.math.div_rn(total, WINDOW * WINDOW * 1.0), True)
    centred = rounded(rounded(mean * root, EACH) - wide(bias + column, used), EACH)
    result = centred * wide(scale + column, used)
    tl.store(out + row.to(tl.int64) * d + column, result.to(out.dtype.element_ty), mask=used)


@implementation(
    "vit_pool", name="triton", engine="ptx", requires=("triton",), profile=("mean", "each_step")
)
def vit_pool_triton(
    x: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    *,
    root: float,
    profile: str,
) -> torch.Tensor:
    """One launch; a patch may stand anywhere, padding matches no cell."""
    x, positions, cells = by_rows(x), by_rows(positions), by_rows(cells)
    rows, (patches, d) = cells.shape[0], x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    columns = min(COLUMNS, power_of_two(d))
    pool_kernel[(rows * -(-d // columns),)](
        x,
        positions,
        cells,
        bias,
        scale,
        out,
        patches,
        d,
        x.stride(0),
        positions.stride(0),
        cells.stride(0),
        root,
        WINDOW=WINDOW,
        EACH=profile == "each_step",
        PATCHES=PATCHES,
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return out
