"""Soft cap in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import implementation
from contract.engines.cuda_launch import Kernel
from contract.kernels.cuda import VECTOR, kernel, row_stride, whole_warps
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

PROFILES = ("each_op", "once", "float32")
ENTRIES = {profile: kernel("softcap", f"softcap_{profile}") for profile in PROFILES}
THREADS = 256


@implementation("softcap", name="cuda", engine="ptx", profile=PROFILES, requires=("nvcc",))
def softcap_cuda(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """A vector of 16 bytes a thread, in one pass; the quotient is a product with 1 / cap in fp32."""
    return launched(ENTRIES[profile], x, cap)


def launched(entry: Kernel, x: torch.Tensor, cap: float, *, most: int = THREADS) -> torch.Tensor:
    """One launch of an entry of softcap.cu, in blocks of at most that many threads."""
    rows, n = x.shape
    out = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    vectors = -(-n * x.element_size() // VECTOR)
    threads = whole_warps(vectors, most)
    limit = np.float32(cap)
    numbers = np.int32(n), limit, np.float32(1.0) / limit
    entry.launch(
        (rows, -(-vectors // threads), 1),
        (threads, 1, 1),
        (x, out, row_stride(x), row_stride(out), *numbers),
    )
    return out
