"""3 x 3 pooling of image patches by position in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import implementation
from contract.engines.cuda_launch import Kernel
from contract.kernels.cuda import kernel, row_stride, whole_warps
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

PROFILES = ("mean", "each_step")
ENTRIES = {profile: kernel("vit_pool", f"vit_pool_{profile}") for profile in PROFILES}
#: Elements of a vector, and threads of the largest block: MOST_THREADS of the .cu.
LANES, THREADS = 8, 256


@implementation("vit_pool", name="cuda", engine="ptx", profile=PROFILES, requires=("nvcc",))
def vit_pool_cuda(
    x: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    *,
    root: float,
    profile: str,
) -> torch.Tensor:
    """A block a cell and tile of columns; it adds the cell's patches in ascending order, however many there are."""
    return launched(ENTRIES[profile], x, positions, cells, bias, scale, root)


def launched(
    entry: Kernel,
    x: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    root: float,
    *,
    most: int = THREADS,
) -> torch.Tensor:
    """One launch of an entry of vit_pool.cu, in blocks of at most that many threads."""
    (patches, d), rows = x.shape, cells.shape[0]
    out = torch.empty(rows, d, dtype=x.dtype, device=x.device)
    vectors = -(-d // LANES)
    threads = whole_warps(vectors, most)
    entry.launch(
        (rows, -(-vectors // threads), 1),
        (threads, 1, 1),
        (
            x,
            positions,
            cells,
            bias,
            scale,
            out,
            *(row_stride(a) for a in (x, positions, cells, out)),
            np.int32(patches),
            np.int32(d),
            np.float32(root),
        ),
    )
    return out
