"""Planted projections with a norm behind them: what is rounded, what the norm reads, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.add_rms_tail import normed
from contract.kernels.products import product
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Pair = tuple["torch.Tensor", "torch.Tensor"]
KERNEL, BOTH = "linear_residual_rms", ("each", "fused")


def tail(
    branch: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    profile: str,
) -> Pair:
    """The right tail of an fp32 accumulator."""
    dtype = residual.dtype
    if profile == "each":
        stored = branch.to(dtype) + residual
        return stored, normed(stored.float(), norm_weight, eps).to(dtype)
    stream = branch + residual.float()
    return stream.to(dtype), normed(stream, norm_weight, eps).to(dtype)


@red(KERNEL, profile="each", gate="exact")
def product_not_rounded(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The accumulator is added to the stream."""
    stored = (product(x, weight, None) + residual.float()).to(x.dtype)
    return stored, normed(stored.float(), norm_weight, eps).to(x.dtype)


@red(KERNEL, profile="fused", gate="exact")
def norm_of_the_stored_sum(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The norm reads back what was stored."""
    stored = (product(x, weight, None) + residual.float()).to(x.dtype)
    return stored, normed(stored.float(), norm_weight, eps).to(x.dtype)


@red(KERNEL, profile="each", gate="exact")
def norm_of_the_unrounded_sum(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The norm reads the sum before the store."""
    stream = product(x, weight, None).to(x.dtype).float() + residual.float()
    return stream.to(x.dtype), normed(stream, norm_weight, eps).to(x.dtype)


@red(KERNEL, profile=BOTH, gate="exact")
def norm_without_the_residual(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The stream is right, the norm is the branch's."""
    branch = product(x, weight, None)
    total, _ = tail(branch, residual, norm_weight, eps, profile)
    return total, normed(branch.to(x.dtype).float(), norm_weight, eps).to(x.dtype)


@red(KERNEL, profile=BOTH, gate="exact")
def statistics_of_one_tile(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The mean square is taken over the outputs of the first half alone."""
    total, _ = tail(product(x, weight, None), residual, norm_weight, eps, profile)
    wide = total.float()
    half = wide[:, : (wide.shape[-1] + 1) // 2]
    inverse = torch.rsqrt(half.square().mean(-1, keepdim=True) + eps)
    return total, (wide * inverse * norm_weight.float()).to(x.dtype)


@red(KERNEL, profile=BOTH, gate="exact")
def accumulator_in_bf16(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The running sum is stored after every 16 columns."""
    total = torch.zeros((x.shape[0], weight.shape[0]))
    for c in range(0, x.shape[-1], 16):
        part = product(x[:, c : c + 16], weight[:, c : c + 16], None)
        total = (total + part).bfloat16().float()
    return tail(total, residual, norm_weight, eps, profile)


@green(KERNEL, profile=BOTH)
def columns_in_reverse(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """Columns from the last to the first."""
    branch = x.flip(-1).float() @ weight.flip(-1).float().T
    return tail(branch, residual, norm_weight, eps, profile)


@green(KERNEL, profile="fused")
def split_in_two(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """Two halves of the columns, added."""
    half = (x.shape[-1] + 1) // 2
    first = product(x[:, :half], weight[:, :half], None)
    branch = first if half == x.shape[-1] else first + product(x[:, half:], weight[:, half:], None)
    return tail(branch, residual, norm_weight, eps, "fused")
