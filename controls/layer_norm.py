"""Planted layer norms: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.clients.torch_norms import torch_layer_norm
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def centred(x: torch.Tensor) -> torch.Tensor:
    """x - m in fp32."""
    return x.float() - x.float().mean(-1, keepdim=True)


def inverse_deviation(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(v + eps) of each row, in two passes."""
    return torch.rsqrt(centred(x).square().mean(-1, keepdim=True) + eps)


@red("layer_norm", profile=("each_op", "float32"), gate="exact")
def one_pass_variance(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, profile: str
) -> torch.Tensor:
    """mean(x^2) - m^2 cancels: a constant row is far from its bias, or NaN."""
    wide = x.float()
    total = torch.zeros_like(wide[:, 0])
    for column in wide.unbind(-1):
        total = total + column * column
    mean = wide.mean(-1, keepdim=True)
    variance = total.unsqueeze(-1) / x.shape[-1] - mean * mean
    normed = ((wide - mean) * torch.rsqrt(variance + eps)).to(x.dtype)
    return normed * weight + bias


@red("layer_norm", profile="once", gate="exact", name="one_pass_variance")
def one_pass_variance_once(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """mean(x^2) - m^2, with one rounding at the end."""
    mean = x.float().mean(-1, keepdim=True)
    variance = x.float().square().mean(-1, keepdim=True) - mean.square()
    normed = (x.float() - mean) * torch.rsqrt(variance + eps)
    return (normed * weight.float() + bias.float()).to(x.dtype)


@red("layer_norm", profile="once", gate="exact")
def variance_over_one_less(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The sum of squares divided by d - 1, as torch.var does by default."""
    total = centred(x).square().sum(-1, keepdim=True) / max(1, x.shape[-1] - 1)
    normed = centred(x) * torch.rsqrt(total + eps)
    return (normed * weight.float() + bias.float()).to(x.dtype)


@red("layer_norm", profile="once", gate="exact")
def bias_rounded_apart(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The scaled row is rounded before the bias is added."""
    scaled = (centred(x) * inverse_deviation(x, eps) * weight.float()).to(x.dtype)
    return scaled + bias


@red("layer_norm", profile=("once", "float32"), gate="shapes")
def bias_before_gain(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """(n + b) w."""
    normed = centred(x) * inverse_deviation(x, eps)
    return ((normed + bias.float()) * weight.float()).to(x.dtype)


@red("layer_norm", profile="once", gate="stress")
def eps_left_out(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """1 / sqrt(v)."""
    normed = centred(x) * inverse_deviation(x, 0.0)
    return (normed * weight.float() + bias.float()).to(x.dtype)


@red("layer_norm", profile="once", gate="stress")
def eps_outside_the_root(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """1 / (sqrt(v) + eps)."""
    root = centred(x).square().mean(-1, keepdim=True).sqrt()
    return (centred(x) / (root + eps) * weight.float() + bias.float()).to(x.dtype)


@red("layer_norm", profile="once", gate="stress")
def mean_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The mean is rounded to the row's format."""
    deviation = x.float() - x.float().mean(-1, keepdim=True).to(x.dtype).float()
    inverse = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return (deviation * inverse * weight.float() + bias.float()).to(x.dtype)


@red("layer_norm", profile="each_op", gate="exact", name="F.layer_norm")
def torch_under_each_op(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """torch rounds once."""
    return torch_layer_norm(x, weight, bias, eps=eps)


@green("layer_norm", profile=("once", "float32"))
def in_float64(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Every step is kept wider."""
    wide = x.double()
    deviation = wide - wide.mean(-1, keepdim=True)
    normed = deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return (normed * weight.double() + bias.double()).float().to(x.dtype)


@green("layer_norm", profile="once")
def one_after_the_other(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Welford's running moments, column after column."""
    mean = torch.zeros_like(x[:, :1], dtype=torch.float32)
    total = torch.zeros_like(mean)
    for k, column in enumerate(x.float().split(1, dim=-1)):
        delta = column - mean
        mean = mean + delta / (k + 1)
        total = total + delta * (column - mean)
    normed = (x.float() - mean) * torch.rsqrt(total / x.shape[-1] + eps)
    return (normed * weight.float() + bias.float()).to(x.dtype)


@green("layer_norm", profile=("once", "float32"))
def separate_product_and_sum(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The last multiply-add in two roundings, sums from the last column."""
    flipped = x.flip(-1)
    normed = (centred(flipped) * inverse_deviation(flipped, eps)).flip(-1)
    return (normed * weight.float() + bias.float()).to(x.dtype)


@green("layer_norm", profile="each_op")
def row_by_row(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """One row at a time."""
    rows = [(centred(row) * inverse_deviation(row, eps)).to(x.dtype) for row in x]
    return torch.stack(rows) * weight + bias
