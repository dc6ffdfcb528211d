"""Planted tails of residual blocks in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.cuda_faults import planted
from contract.kernels.cuda import add_rms_tail

if TYPE_CHECKING:
    from torch import Tensor

PLANTED = planted("add_rms_tail")
PLAIN: dict[str, Any] = {"branch_norm": "no", "scale": "no", "engine": "ptx", "requires": ("nvcc",)}
NORMED: dict[str, Any] = {**PLAIN, "branch_norm": "yes"}


def plain(fault: str, x: Tensor, residual: Tensor, weight: Tensor, eps: float, profile: str) -> Any:
    """The sum and the next norm, with the macro of one fault."""
    entry = PLANTED(profile, fault)
    return add_rms_tail.launched(entry, x, residual, weight, None, None, eps)


@red("add_rms_tail", profile=("each", "two_step"), gate="shapes", name="cuda.cut_store", **PLAIN)
def cut_store(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, profile: str) -> Any:
    """Both stores drop the bits below."""
    return plain("CUT_STORE", x, residual, weight, eps, profile)


@red("add_rms_tail", profile="fused", gate="shapes", name="cuda.shuffle_missing", **PLAIN)
def shuffle_missing(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:
    """The warps' sums are added without the step 16 lanes apart."""
    return plain("SHUFFLE_MISSING", x, residual, weight, eps, "fused")


@red("add_rms_tail", profile="each", gate="shapes", name="cuda.first_warp_only", **PLAIN)
def first_warp_only(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:
    """The mean square of the columns that the first warp holds."""
    return plain("FIRST_WARP_ONLY", x, residual, weight, eps, "each")


@red("add_rms_tail", profile="two_step", gate="shapes", name="cuda.no_barrier", **PLAIN)
def no_barrier(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:
    """The sum over the block is read before every warp has written its own."""
    return plain("NO_BARRIER", x, residual, weight, eps, "two_step")


@red("add_rms_tail", profile="fused", gate="exact", name="cuda.bf16_accumulator", **PLAIN)
def bf16_accumulator(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:
    """A thread's running sum of squares is rounded to bf16."""
    return plain("BF16_ACCUMULATOR", x, residual, weight, eps, "fused")


@red("add_rms_tail", profile="each", gate="shapes", name="cuda.one_array", **NORMED)
def one_array(
    x: Tensor, residual: Tensor, branch_weight: Tensor, weight: Tensor, *, eps: float
) -> Any:
    """Both sums go through one array without a barrier between them: right unless a warp is slow."""
    entry = PLANTED("each_branch", "ONE_ARRAY")
    return add_rms_tail.launched(entry, x, residual, weight, branch_weight, None, eps)


@green("add_rms_tail", profile=("each", "fused", "two_step"), name="cuda.wide_blocks", **PLAIN)
def wide_blocks(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, profile: str) -> Any:
    """One vector a thread where the block is large enough: another tree."""
    entry = add_rms_tail.ENTRIES[profile]
    return add_rms_tail.launched(entry, x, residual, weight, None, None, eps, held=1)
