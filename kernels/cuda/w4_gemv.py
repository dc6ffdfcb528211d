"""Vectors times a four-bit weight in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import implementation
from contract.engines.cuda_launch import Kernel
from contract.kernels.cuda import WARP, kernel, row_stride
from contract.kernels.packing import checked_scales
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: Outputs of a block: OUTPUTS of the .cu.
OUTPUTS = 4
#: Vectors that share the weights a warp has formed.
ROWS = (1, 4)
VARIANTS = ("kept_32", "kept_32_offsets", "kept_128", "dequantised_32", "offset_128")
ENTRIES = {(v, rows): kernel("w4_gemv", f"{v}_x{rows}") for v in VARIANTS for rows in ROWS}


@implementation(
    "w4_gemv",
    name="cuda",
    engine="ptx",
    profile=("kept", "dequantised", "offset"),
    requires=("nvcc",),
)
class W4GemvCuda:
    """The packed weight is checked once, and read where it lies for every vector."""

    def __init__(
        self,
        words: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        offset: torch.Tensor | None = None,
        *,
        block: str,
        profile: str,
    ) -> None:
        k = 8 * words.shape[1]
        checked_scales(scales, k, int(block))
        if offset is not None:
            checked_scales(offset, k, int(block), "offset")
        self.weight = words, scales, zeros, offset
        self.variant = f"{profile}_{block}" + ("" if offset is None else "_offsets")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, k) bf16 -> (rows, n) bf16."""
        rows = ROWS[0] if x.shape[0] == 1 else ROWS[1]
        return launched(ENTRIES[self.variant, rows], rows, x, *self.weight)


def launched(
    entry: Kernel,
    tile: int,
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    offset: torch.Tensor | None,
) -> torch.Tensor:
    """One launch of an entry of w4_gemv.cu, which takes `tile` vectors a block."""
    (rows, k), n = x.shape, words.shape[0]
    out = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    operands = (x, words, scales, zeros, offset, out)
    entry.launch(
        (-(-n // OUTPUTS), -(-rows // tile), 1),
        (OUTPUTS * WARP, 1, 1),
        (
            *operands,
            *(np.int64(0) if a is None else row_stride(a) for a in operands),
            np.int32(rows),
            np.int32(n),
            np.int32(k),
        ),
    )
    return out
