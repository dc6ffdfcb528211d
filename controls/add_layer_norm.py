"""Planted sums with layer norms: statistics of another row, sums left out, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.add_layer_norm import add_layer_norm_torch
from contract.kernels.layer_norm import layer_norm_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Pair = tuple["torch.Tensor", "torch.Tensor"]
ALL = ("stored", "fused", "each_op")


def normed(values: torch.Tensor, statistics: torch.Tensor, eps: float) -> torch.Tensor:
    """(values - m) / sqrt(v + eps) with mean and variance of other rows, in fp32."""
    mean = statistics.mean(-1, keepdim=True)
    variance = (statistics - mean).square().mean(-1, keepdim=True)
    return (values - mean) * torch.rsqrt(variance + eps)


@red("add_layer_norm", profile="fused", gate="exact")
def norm_of_the_stored_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> Pair:
    """The norm reads the sum after the store."""
    return add_layer_norm_torch(x, residual, weight, bias, eps=eps, profile="stored")


@red("add_layer_norm", profile="stored", gate="exact")
def norm_of_the_unrounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> Pair:
    """The norm reads the sum before the store."""
    return add_layer_norm_torch(x, residual, weight, bias, eps=eps, profile="fused")


@red("add_layer_norm", profile="fused", gate="stress")
def statistics_of_the_rounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> Pair:
    """Mean and variance of the stored sum, values of the unrounded one."""
    stream = x.float() + residual.float()
    stored = stream.to(x.dtype)
    y = normed(stream, stored.float(), eps) * weight.float() + bias.float()
    return stored, y.to(x.dtype)


@red("add_layer_norm", profile="stored", gate="stress")
def statistics_of_the_unrounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> Pair:
    """Mean and variance of the sum before the store, values of the stored one."""
    stream = x.float() + residual.float()
    stored = stream.to(x.dtype)
    y = normed(stored.float(), stream, eps) * weight.float() + bias.float()
    return stored, y.to(x.dtype)


@red("add_layer_norm", profile=ALL, gate="exact")
def norm_of_the_branch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The norm reads the branch alone."""
    zeros = torch.zeros_like(residual)
    return x + residual, add_layer_norm_torch(x, zeros, weight, bias, eps=eps, profile=profile)[1]


@red("add_layer_norm", profile=ALL, gate="exact")
def norm_of_the_old_stream(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The norm reads the stream before the branch was added."""
    zeros = torch.zeros_like(x)
    return x + residual, add_layer_norm_torch(
        zeros, residual, weight, bias, eps=eps, profile=profile
    )[1]


@red("add_layer_norm", profile=ALL, gate="exact")
def total_not_updated(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The old stream is handed on."""
    out = add_layer_norm_torch(x, residual, weight, bias, eps=eps, profile=profile)[1]
    return residual.clone(), out


@red("add_layer_norm", profile=ALL, gate="exact")
def outputs_exchanged(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """The norm goes where the total belongs."""
    total, out = add_layer_norm_torch(x, residual, weight, bias, eps=eps, profile=profile)
    return out, total


@red("add_layer_norm", profile="stored", gate="exact")
def rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> Pair:
    """The mean is not taken off."""
    total = (x + residual).float()
    inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    y = total * inverse * weight.float() + bias.float()
    return total.to(x.dtype), y.to(x.dtype)


@red("add_layer_norm", profile="stored", gate="bounds")
def residual_in_place(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> Pair:
    """The stream is overwritten, which only an implementation that says so may do."""
    residual.add_(x)
    return residual.clone(), layer_norm_torch(residual, weight, bias, eps=eps, profile="once")


@green("add_layer_norm", profile=("stored", "fused"))
def in_float64(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """Every step is kept wider."""
    stream = x.double() + residual.double()
    total = stream.float().to(x.dtype)
    source = stream if profile == "fused" else total.double()
    centred = source - source.mean(-1, keepdim=True)
    root = torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    out = centred / root * weight.double() + bias.double()
    return total, out.float().to(x.dtype)


@green("add_layer_norm", profile=ALL)
def row_by_row(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> Pair:
    """One row at a time."""
    pairs = [
        add_layer_norm_torch(a[None], b[None], weight, bias, eps=eps, profile=profile)
        for a, b in zip(x, residual, strict=True)
    ]
    return torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
