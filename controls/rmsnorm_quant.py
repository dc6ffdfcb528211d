"""Planted norms with codes: other gains, points, scales and roundings, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.add_rms_tail import normed
from contract.kernels.rmsnorm_quant import rmsnorm_quant_torch
from contract.kernels.static_int8 import static_codes
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("fused", "bf16_between")


def before_codes(x: torch.Tensor, weight: torch.Tensor, eps: float, profile: str) -> torch.Tensor:
    """y in fp32, rounded to bf16 where the profile says so."""
    y = normed(x.float(), 1.0 + weight.float(), eps)
    return y.bfloat16().float() if profile == "bf16_between" else y


@red("rmsnorm_quant", profile="fused", gate="shapes")
def rounded_between(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """The norm is stored in bf16 before it is quantised."""
    return rmsnorm_quant_torch(x, weight, eps=eps, scale=scale, profile="bf16_between")


@red("rmsnorm_quant", profile="bf16_between", gate="exact")
def not_rounded_between(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """The norm stays in fp32."""
    return rmsnorm_quant_torch(x, weight, eps=eps, scale=scale, profile="fused")


@red("rmsnorm_quant", profile="bf16_between", gate="exact")
def half_away(x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float) -> torch.Tensor:
    """Halves are rounded away from zero."""
    q = before_codes(x, weight, eps, "bf16_between") / scale
    whole = (q.abs() + 0.5).floor().copysign(q)
    return whole.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("rmsnorm_quant", profile=BOTH, gate="exact")
def truncated(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """The store's conversion cuts the fraction off."""
    q = before_codes(x, weight, eps, profile) / scale
    return q.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("rmsnorm_quant", profile=BOTH, gate="exact")
def down_to_minus_128(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """The lower end is the type's."""
    q = before_codes(x, weight, eps, profile) / scale
    return q.clamp(-128.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


@red("rmsnorm_quant", profile=BOTH, gate="exact")
def wraps(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """No clamp: what does not fit wraps round."""
    q = (before_codes(x, weight, eps, profile) / scale).nan_to_num(0.0).clamp(-1e6, 1e6)
    return q.round().to(torch.int32).to(torch.int8)


@red("rmsnorm_quant", profile=BOTH, gate="exact")
def gain_without_one(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """w in place of 1 + w."""
    return rmsnorm_quant_torch(x, weight - 1.0, eps=eps, scale=scale, profile=profile)


@red("rmsnorm_quant", profile="fused", gate="exact")
def one_plus_w_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float
) -> torch.Tensor:
    """1 + w is formed in bf16."""
    return static_codes(normed(x.float(), 1.0 + weight, eps), scale)


# lint: zeros are what this mistake gives wherever the scale is a small number
@red("rmsnorm_quant", profile=BOTH, gate="exact")
def scale_multiplied(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """y s in place of y / s."""
    return static_codes(before_codes(x, weight, eps, profile) * scale, 1.0)


@red("rmsnorm_quant", profile=BOTH, gate="shapes")
def scale_of_the_row(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """max|y| / 127 of each row in place of the scale that was given."""
    y = before_codes(x, weight, eps, profile)
    return static_codes(y / (y.abs().amax(-1, keepdim=True) / 127.0), 1.0)


@red("rmsnorm_quant", profile=BOTH, gate="exact")
def gain_folded_twice(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """The gain is applied to the row and again to the scale."""
    y = before_codes(x, weight, eps, profile)
    return static_codes(y * (1.0 + weight.float()), scale)


@green("rmsnorm_quant", profile=BOTH)
def in_float64(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """Every step is kept wider."""
    wide = x.double()
    y = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps) * (1.0 + weight.double())
    return static_codes(y.float().bfloat16().double() if profile == "bf16_between" else y, scale)


@green("rmsnorm_quant", profile=BOTH)
def reciprocal_of_the_scale(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """A product with 1 / s."""
    q = before_codes(x, weight, eps, profile) * (1.0 / scale)
    return q.clamp(-127.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


@green("rmsnorm_quant", profile=BOTH)
def mean_in_chunks(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """The sum of squares runs over 96 columns at a time, from the back."""
    wide = x.float()
    total = torch.zeros_like(wide[:, :1])
    for part in reversed(wide.split(96, -1)):
        total = total + part.square().sum(-1, keepdim=True)
    y = wide * torch.rsqrt(total / x.shape[-1] + eps) * (1.0 + weight.float())
    return static_codes(y.bfloat16().float() if profile == "bf16_between" else y, scale)
