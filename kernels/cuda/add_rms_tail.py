"""The tail of a residual block in CUDA C++."""

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

#: Elements of a vector, vectors that a thread holds, and threads of the largest block: HELD and MOST_THREADS of the .cu.
LANES, HELD, THREADS = 8, 2, 1024
WIDEST = LANES * HELD * THREADS
#: A thread adds HELD * LANES squares, the first to zero; five shuffles in the warp, five among the warps.
DEPTH = HELD * LANES + 5 + 5
ENTRIES = {
    name: kernel("add_rms_tail", name)
    for profile, variants in (
        ("each", ("", "_scaled", "_branch", "_branch_scaled")),
        ("each_norm", ("_branch", "_branch_scaled")),
        ("fused", ("", "_scaled", "_branch", "_branch_scaled")),
        ("two_step", ("",)),
    )
    for variant in variants
    for name in (profile + variant,)
}


@implementation(
    "add_rms_tail",
    name="cuda",
    engine="ptx",
    requires=("nvcc",),
    profile=("each", "each_norm", "fused", "two_step"),
    order={"branch_mean": DEPTH, "mean": DEPTH},
)
def add_rms_tail_cuda(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    branch_weight: torch.Tensor | None = None,
    scalar: torch.Tensor | None = None,
    *,
    eps: float,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One block a row, which stays in registers: each operand is read once, each result written once.

    Raises:
        ValueError: rows wider than a block holds.
    """
    name = profile + ("" if branch_weight is None else "_branch")
    name += "" if scalar is None else "_scaled"
    return launched(ENTRIES[name], x, residual, weight, branch_weight, scalar, eps)


def launched(
    entry: Kernel,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    branch_weight: torch.Tensor | None,
    scalar: torch.Tensor | None,
    eps: float,
    *,
    held: int = HELD,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch of an entry of add_rms_tail.cu, in a block whose threads hold `held` vectors."""
    rows, d = x.shape
    if d > WIDEST:
        raise ValueError(f"rows of {d} columns; a block holds {WIDEST}")
    total, out = (torch.empty(rows, d, dtype=x.dtype, device=x.device) for _ in range(2))
    strides = (row_stride(a) for a in (x, residual, total, out))
    entry.launch(
        (rows, 1, 1),
        (whole_warps(-(-d // (LANES * held)), THREADS), 1, 1),
        (
            x,
            residual,
            branch_weight,
            scalar,
            weight,
            total,
            out,
            *strides,
            np.int32(d),
            np.float32(eps),
        ),
    )
    return total, out
