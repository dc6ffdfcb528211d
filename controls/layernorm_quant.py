"""Planted layer norms with codes: other moments, points, scales and roundings, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.layernorm_quant import layer_normed, layernorm_quant_torch
from contract.kernels.static_int8 import static_codes
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("fused", "bf16_between")


def rounded(y: torch.Tensor, profile: str) -> torch.Tensor:
    """y, in bf16 where the profile says so."""
    return y.bfloat16().to(y.dtype) if profile == "bf16_between" else y


@red("layernorm_quant", profile="fused", gate="stress")
def rounded_between(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """The norm is stored in bf16 before it is quantised."""
    return layernorm_quant_torch(x, weight, bias, eps=eps, scale=scale, profile="bf16_between")


@red("layernorm_quant", profile="bf16_between", gate="stress")
def not_rounded_between(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """The norm stays in fp32."""
    return layernorm_quant_torch(x, weight, bias, eps=eps, scale=scale, profile="fused")


@red("layernorm_quant", profile="bf16_between", gate="exact")
def half_away(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """Halves are rounded away from zero; without a rounding before it no y is certain to be one."""
    q = rounded(layer_normed(x, weight, bias, eps), "bf16_between") / scale
    whole = (q.abs() + 0.5).floor().copysign(q)
    return whole.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("layernorm_quant", profile=BOTH, gate="exact")
def truncated(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """The store's conversion cuts the fraction off."""
    q = rounded(layer_normed(x, weight, bias, eps), profile) / scale
    return q.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("layernorm_quant", profile=BOTH, gate="exact")
def down_to_minus_128(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """The lower end is the type's."""
    q = rounded(layer_normed(x, weight, bias, eps), profile) / scale
    return q.clamp(-128.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


@red("layernorm_quant", profile=BOTH, gate="exact")
def wraps(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """No clamp: what does not fit wraps round."""
    q = (rounded(layer_normed(x, weight, bias, eps), profile) / scale).nan_to_num(0.0)
    return q.clamp(-1e6, 1e6).round().to(torch.int32).to(torch.int8)


@red("layernorm_quant", profile=BOTH, gate="exact")
def bias_left_out(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """Codes of (x - m) / sqrt(v + eps) w."""
    return layernorm_quant_torch(
        x, weight, torch.zeros_like(bias), eps=eps, scale=scale, profile=profile
    )


@red("layernorm_quant", profile=BOTH, gate="exact")
def bias_after_the_codes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """The bias is quantised by itself and added to the codes, as a zero point would be."""
    y = rounded(layer_normed(x, weight, torch.zeros_like(bias), eps), profile)
    both = static_codes(y, scale).int() + static_codes(bias.float(), scale).int()
    return both.clamp(-127, 127).to(torch.int8)


@red("layernorm_quant", profile=BOTH, gate="shapes")
def mean_not_taken_off(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """An RMS norm."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = torch.addcmul(bias.float(), wide * inverse, weight.float())
    return static_codes(rounded(y, profile), scale)


# lint: zeros are what this mistake gives wherever the scale is a small number
@red("layernorm_quant", profile=BOTH, gate="exact")
def scale_multiplied(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """y s in place of y / s."""
    return static_codes(rounded(layer_normed(x, weight, bias, eps), profile) * scale, 1.0)


@red("layernorm_quant", profile=BOTH, gate="shapes")
def scale_of_the_row(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """max|y| / 127 of each row in place of the scale that was given."""
    y = rounded(layer_normed(x, weight, bias, eps), profile)
    return static_codes(y / (y.abs().amax(-1, keepdim=True) / 127.0), 1.0)


@green("layernorm_quant", profile=BOTH)
def in_float64(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """Every step is kept wider."""
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    inverse = 1.0 / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = centred * inverse * weight.double() + bias.double()
    return static_codes(rounded(y.float(), profile).double(), scale)


@green("layernorm_quant", profile=BOTH)
def reciprocal_of_the_scale(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """A product with 1 / s."""
    q = rounded(layer_normed(x, weight, bias, eps), profile) * (1.0 / scale)
    return q.clamp(-127.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


@green("layernorm_quant", profile=BOTH)
def moments_in_chunks(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """Both sums run over 96 columns at a time, from the back."""
    wide = x.float()
    centred = wide - chunk_mean(wide)
    y = centred * torch.rsqrt(chunk_mean(centred.square()) + eps) * weight.float() + bias.float()
    return static_codes(rounded(y, profile), scale)


def chunk_mean(wide: torch.Tensor) -> torch.Tensor:
    """The mean of each row, 96 columns at a time."""
    total = torch.zeros_like(wide[:, :1])
    for part in reversed(wide.split(96, -1)):
        total = total + part.sum(-1, keepdim=True)
    return total / wide.shape[-1]
