"""Planted normalisations to length 1: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
FUSED = ("once", "float32")


def total(x: T) -> torch.Tensor:
    """Sum of squares of each row, fp32."""
    return x.float().square().sum(-1, keepdim=True)


@red("l2norm", profile=FUSED, gate="stress")
def eps_left_out(x: T, *, eps: float) -> torch.Tensor:
    """A row of zeros is NaN."""
    return (x.float() * torch.rsqrt(total(x))).to(x.dtype)


@red("l2norm", profile=FUSED, gate="stress")
def eps_left_out_and_nan_cleared(x: T, *, eps: float) -> torch.Tensor:
    """No eps; a row of zeros is caught afterwards."""
    return (x.float() * torch.rsqrt(total(x)).nan_to_num(posinf=0.0)).to(x.dtype)


@red("l2norm", profile=FUSED, gate="stress")
def eps_outside_the_root(x: T, *, eps: float) -> torch.Tensor:
    """x / (sqrt(sum) + eps)."""
    return (x.float() / (total(x).sqrt() + eps)).to(x.dtype)


@red("l2norm", profile=FUSED, gate="stress")
def eps_as_the_least_length(x: T, *, eps: float) -> torch.Tensor:
    """x / max(|x|, eps), torch's F.normalize."""
    return torch.nn.functional.normalize(x.float(), dim=-1, eps=eps).to(x.dtype)


@red("l2norm", profile="once", gate="stress")
def eps_squared(x: T, *, eps: float) -> torch.Tensor:
    """eps in units of x."""
    return (x.float() * torch.rsqrt(total(x) + eps * eps)).to(x.dtype)


@red("l2norm", profile=FUSED, gate="shapes")
def mean_for_sum(x: T, *, eps: float) -> torch.Tensor:
    """RMS norm: longer by the root of the width."""
    return (x.float() * torch.rsqrt(total(x) / x.shape[-1] + eps)).to(x.dtype)


@red("l2norm", profile="once", gate="shapes")
def root_left_out(x: T, *, eps: float) -> torch.Tensor:
    """x / (sum + eps)."""
    return (x.float() / (total(x) + eps)).to(x.dtype)


@red("l2norm", profile="once", gate="shapes")
def last_column_not_summed(x: T, *, eps: float) -> torch.Tensor:
    """The sum stops one before the end."""
    return (x.float() * torch.rsqrt(total(x[..., :-1]) + eps)).to(x.dtype)


@red("l2norm", profile="once", gate="exact")
def inverse_in_bf16(x: T, *, eps: float) -> torch.Tensor:
    """The inverse root is stored in bf16 before it multiplies."""
    return x * torch.rsqrt(total(x) + eps).to(x.dtype)


@red("l2norm", profile="once", gate="exact")
def each_operator_rounded(x: T, *, eps: float) -> torch.Tensor:
    """Operators on bf16 tensors: squares, sum, inverse and product are rounded."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


@green("l2norm", profile=FUSED)
def divided_by_the_root(x: T, *, eps: float) -> torch.Tensor:
    """x / sqrt(sum + eps), summed from the last column."""
    return (x.float() / torch.sqrt(total(x.flip(-1)) + eps)).to(x.dtype)


@green("l2norm", profile=FUSED)
def in_float64(x: T, *, eps: float) -> torch.Tensor:
    """Every step is kept wider."""
    wide = x.double()
    return (wide / torch.sqrt(wide.square().sum(-1, keepdim=True) + eps)).float().to(x.dtype)
