"""Planted SwiGLUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.swiglu import swiglu_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = lazy("torch"), lazy("torch.nn.functional")

EVERY = ("two_step", "each_op", "once", "float32")


# -- the formula


@red("swiglu", profile=EVERY, gate="shapes")
def halves_swapped(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """The activation on up, not on gate."""
    return swiglu_torch(up, gate, profile=profile)


@red("swiglu", profile=("two_step", "float32"), gate="shapes")
def sigmoid(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The sigmoid without its argument: a GLU."""
    return torch.sigmoid(gate) * up


@red("swiglu", profile="two_step", gate="shapes")
def both_halves(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation on both."""
    return F.silu(gate) * F.silu(up)


@red("swiglu", profile="two_step", gate="shapes")
def gelu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Another model's activation."""
    return F.gelu(gate, approximate="tanh") * up


@red("swiglu", profile=("once", "float32"), gate="stress")
def deep_negative_zeroed(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """A fast divide: zero where the divisor passes 2^126."""
    wide = gate.float()
    below = 1.0 + torch.exp(-wide)
    silu = torch.where(below > 2.0**126, wide * 0.0, wide / below)
    return (silu * up.float()).to(gate.dtype)


@red("swiglu", profile="two_step", gate="stress")
def exponential_first(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """x exp(x) / (1 + exp(x)): infinity over infinity from 89 on."""
    grown = torch.exp(gate.float())
    return (gate.float() * (grown / (1.0 + grown))).to(gate.dtype) * up


# -- roundings


@red("swiglu", profile="once", gate="exact")
def two_roundings(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu rounded where only the end is named."""
    return swiglu_torch(gate, up, profile="two_step")


@red("swiglu", profile="once", gate="shapes", name="torch.F.silu")
def functional(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """torch's two kernels, one after the other, where one rounding is named."""
    return F.silu(gate) * up


@red("swiglu", profile="each_op", gate="shapes", name="torch.F.silu")
def functional_for_mlx(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """torch's silu where MLX's sigmoid is rounded before the product."""
    return F.silu(gate) * up


@red("swiglu", profile="two_step", gate="exact")
def one_rounding(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu kept in fp32 where its rounding is named."""
    return swiglu_torch(gate, up, profile="once")


@red("swiglu", profile="two_step", gate="shapes")
def sigmoid_rounded(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The sigmoid stored in bf16 before the product."""
    return gate * torch.sigmoid(gate) * up


@red("swiglu", profile="each_op", gate="shapes")
def exponential_kept(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """MLX's steps without the rounding of the exponential."""
    return gate * torch.sigmoid(gate) * up


@red("swiglu", profile="two_step", gate="exact")
def truncated_store(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The last rounding cuts the bits below."""
    wide = F.silu(gate).float() * up.float()
    return (wide.view(torch.int32) & -65536).view(torch.float32).to(gate.dtype)


@red("swiglu", profile="float32", gate="shapes")
def through_bf16(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu goes through bf16 in an fp32 kernel."""
    return F.silu(gate).bfloat16().float() * up


# -- places


@red("swiglu", profile="two_step", gate="shapes")
def neighbour_column(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """up read one column further."""
    return F.silu(gate) * up.roll(-1, 1)


@red("swiglu", profile="two_step", gate="shapes")
def tail_dropped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Columns beyond the last whole vector of 8 are left as they were."""
    out = F.silu(gate) * up
    out[:, gate.shape[1] // 8 * 8 :] = 0.0
    return out


@red("swiglu", profile="two_step", gate="bounds")
def writes_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Leaves the activation in its input."""
    gate.copy_(F.silu(gate))
    return gate * up


# -- legal variants


@green("swiglu", profile=("two_step", "once", "float32"))
def in_float64(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """Every step in float64, rounded where the profile says so."""
    wide = gate.double()
    silu = wide / (1.0 + torch.exp(-wide))
    if profile == "two_step":
        silu = silu.float().to(gate.dtype).double()
    return (silu * up.double()).float().to(gate.dtype)


@green("swiglu", profile=("two_step", "once"))
def by_sigmoid(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """gate * sigmoid(gate) in fp32."""
    silu = gate.float() * torch.sigmoid(gate.float())
    if profile == "two_step":
        silu = silu.to(gate.dtype).float()
    return (silu * up.float()).to(gate.dtype)


@green("swiglu", profile="two_step")
def in_chunks(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Columns in chunks of 1,000."""
    parts = zip(gate.split(1000, dim=1), up.split(1000, dim=1), strict=True)
    return torch.cat([F.silu(g) * u for g, u in parts], 1)
