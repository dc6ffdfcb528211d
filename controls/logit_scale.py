"""Planted scales of logits: other factors, orders and points, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("float32", "each_op")


@red("logit_scale", profile=BOTH, gate="shapes")
def no_exp(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The stored logarithm is the factor."""
    return logits * scale + bias


@red("logit_scale", profile=BOTH, gate="shapes")
def divided(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A temperature: logits / exp(scale)."""
    return logits / scale.exp() + bias


@red("logit_scale", profile=BOTH, gate="exact")
def no_bias(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The bias is left out, as in CLIP."""
    return logits * scale.exp()


@red("logit_scale", profile=BOTH, gate="shapes")
def bias_scaled(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """(logits + bias) exp(scale)."""
    return (logits + bias) * scale.exp()


@red("logit_scale", profile=BOTH, gate="exact")
def bias_subtracted(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The bias with its sign turned."""
    return logits * scale.exp() - bias


@red("logit_scale", profile=BOTH, gate="shapes")
def base_two(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """2^scale."""
    return logits * scale.exp2() + bias


@red("logit_scale", profile=BOTH, gate="shapes")
def clamped_factor(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The logarithm is held below log 100, as CLIP's is."""
    return logits * scale.clamp(max=4.6052).exp() + bias


@red("logit_scale", profile=BOTH, gate="exact")
def probabilities(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sigmoid is applied as well."""
    return torch.sigmoid(logits * scale.exp() + bias)


@red("logit_scale", profile="float32", gate="exact")
def through_bf16(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The result is rounded to bf16 on the way."""
    return (logits * scale.exp() + bias).bfloat16().float()


@red("logit_scale", profile="each_op", gate="exact")
def rounded_once(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Factor and product stay in fp32."""
    wide = logits.float() * scale.float().exp() + bias.float()
    return wide.to(logits.dtype)


@green("logit_scale", profile="float32")
def fused(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """One rounding for product and sum."""
    return (logits.double() * scale.exp().double() + bias.double()).float()


@green("logit_scale", profile="float32")
def in_float64(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Every step is kept wider."""
    return (logits.double() * scale.double().exp() + bias.double()).float()


@green("logit_scale", profile=BOTH)
def bias_first(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Bias plus product."""
    return bias + scale.exp() * logits


@green("logit_scale", profile=BOTH)
def row_by_row(logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """One text after the other."""
    return torch.stack([row * scale.exp() + bias for row in logits])
