"""Planted soft caps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.softcap import softcap_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BF16 = ("each_op", "once")


# -- the formula


@red("softcap", profile=("each_op", "float32"), gate="shapes")
def times_x(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """x * tanh(x / cap)."""
    return torch.tanh(x / cap) * x


@red("softcap", profile="each_op", gate="shapes")
def twice(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Capped, then capped again."""
    once = torch.tanh(x / cap) * cap
    return torch.tanh(once / cap) * cap


@red("softcap", profile=("each_op", "float32"), gate="shapes")
def not_capped(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """The flag that turns the cap on was not read."""
    return x.clone()


@red("softcap", profile="each_op", gate="shapes")
def no_divide(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """cap * tanh(x)."""
    return torch.tanh(x) * cap


@red("softcap", profile="each_op", gate="exact")
def clamped(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """A hard cap."""
    return x.clamp(-cap, cap)


@red("softcap", profile="each_op", gate="shapes")
def other_cap(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """The model's other cap, compiled in: right for the first of the two."""
    return torch.tanh(x / 30.0) * 30.0


@red("softcap", profile="once", gate="stress")
def overflowing_tanh(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """tanh from exp(2 u), infinity over infinity from u = 44 on."""
    grown = torch.exp(2.0 * (x.float() / cap))
    return ((grown - 1.0) / (grown + 1.0) * cap).to(x.dtype)


@red("softcap", profile="float32", gate="shapes")
def tanh_from_sigmoid(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """2 sigmoid(2 u) - 1 in fp32, which cancels for small u: seen in fp32, not in bf16."""
    return (2.0 * torch.sigmoid(2.0 * (x / cap)) - 1.0) * cap


# -- roundings


@red("softcap", profile="each_op", gate="shapes", name="one_rounding")
def one_rounding(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """The profile `once` where each operator's rounding is named."""
    return softcap_torch(x, cap=cap, profile="once")


@red("softcap", profile="once", gate="shapes", name="torch.ops.softcap")
def three_roundings(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """torch's operators where one rounding is named."""
    return torch.tanh(x / cap) * cap


@red("softcap", profile="each_op", gate="exact")
def quotient_kept(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Quotient and tanh fused: the quotient is not rounded."""
    return torch.tanh(x.float() / cap).to(x.dtype) * cap


@red("softcap", profile="each_op", gate="exact")
def tanh_kept(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """tanh fused with the product: it is not rounded."""
    return (torch.tanh((x / cap).float()) * cap).to(x.dtype)


@red("softcap", profile=BF16, gate="shapes")
def truncated_store(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """The last rounding cuts the bits below."""
    quotient = x.float() / cap
    if profile == "each_op":
        squashed = quotient.to(x.dtype).float().tanh().to(x.dtype).float()
    else:
        squashed = quotient.tanh()
    bits = (squashed * cap).view(torch.int32) & -65536
    return bits.view(torch.float32).to(x.dtype)


@red("softcap", profile="once", gate="shapes")
def through_fp16(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """The product goes through fp16 before its store: two roundings."""
    return (torch.tanh(x.float() / cap) * cap).half().to(x.dtype)


@red("softcap", profile="once", gate="exact")
def reciprocal_in_bf16(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """1 / cap held in bf16."""
    inverse = (1.0 / torch.tensor(cap)).to(x.dtype).float()
    return (torch.tanh(x.float() * inverse) * cap).to(x.dtype)


# -- places


@red("softcap", profile="each_op", gate="bounds")
def in_place(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Divides its input in place."""
    return x.div_(cap).tanh() * cap


@red("softcap", profile="each_op", gate="shapes")
def previous_tile(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """From the second tile of 512 columns on, each tile repeats the one before."""
    out = torch.tanh(x / cap) * cap
    shifted = out.clone()
    shifted[:, 512:] = out[:, :-512]
    return shifted


@red("softcap", profile="each_op", gate="shapes")
def tail_dropped(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Columns beyond the last whole vector of 8 are not capped."""
    out = torch.tanh(x / cap) * cap
    whole = x.shape[1] // 8 * 8
    out[:, whole:] = x[:, whole:]
    return out


@red("softcap", profile="each_op", gate="invariance")
def cap_from_neighbour(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """A NaN anywhere in the batch spreads: the rows are scaled by a common maximum first."""
    scale = torch.where(x.float().abs().amax().isnan(), float("nan"), 1.0)
    return (torch.tanh(x / cap) * cap * scale).to(x.dtype)


# -- legal variants


@green("softcap", profile=BF16)
def in_float64(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """Every step in float64, rounded where the profile says so."""
    quotient = x.double() / cap
    if profile == "each_op":
        squashed = quotient.float().to(x.dtype).double().tanh().float().to(x.dtype).double()
    else:
        squashed = quotient.tanh()
    return (squashed * cap).float().to(x.dtype)


@green("softcap", profile=("each_op", "once", "float32"))
def by_reciprocal(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """x * (1 / cap), as torch divides by a number on CUDA."""
    quotient = x.float() * (1.0 / torch.tensor(cap))
    if profile == "each_op":
        return torch.tanh(quotient.to(x.dtype)) * cap
    return (torch.tanh(quotient) * cap).to(x.dtype)


@green("softcap", profile="each_op")
def in_chunks(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Columns in chunks of 1,000."""
    return torch.cat([torch.tanh(part / cap) * cap for part in x.split(1000, dim=1)], dim=1)
