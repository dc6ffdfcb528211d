"""CUDA C++ implementations: NAME.cu holds the kernels, NAME.py beside it the wrapper that launches them.

All of them are compiled by nvcc without contraction of products and sums (`FLAGS`), and write `__fmaf_rn` where one
rounding is meant. Rows may lie any distance apart and begin anywhere; their elements are adjacent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contract.engines.cuda_launch import Kernel

if TYPE_CHECKING:
    import torch

FOLDER = Path(__file__).parent
HEADERS = (FOLDER / "common.cuh", FOLDER / "nibbles.cuh")
FLAGS = ("-fmad=false",)
WARP = 32
#: Bytes that a thread loads at once.
VECTOR = 16


def kernel(name: str, entry: str) -> Kernel:
    """An entry of NAME.cu in this folder."""
    return Kernel(FOLDER / f"{name}.cu", entry, options=FLAGS, headers=HEADERS)


def row_stride(x: torch.Tensor) -> Any:
    """Elements from one row of (rows, columns) to the next.

    Raises:
        ValueError: a tensor of another rank, or with gaps between the elements of a row.
    """
    if x.dim() != 2 or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(
            f"a tensor of shape {tuple(x.shape)} and strides {x.stride()}; the kernel takes rows of adjacent elements"
        )
    return np.int64(x.stride(0))


def whole_warps(threads: int, most: int) -> int:
    """A block of at least that many threads, in whole warps; at most `most`, a number of whole warps."""
    return min(most, -(-threads // WARP) * WARP)
