"""Planted GeGLUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.clients.transformers_norms import NEEDS
from contract.kernels.geglu import geglu_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = lazy("torch"), lazy("torch.nn.functional")

EVERY = ("two_step", "each_op", "each_product", "once")
K, C = 0.044715, math.sqrt(2.0 / math.pi)


# -- the formula


@red("geglu", profile=EVERY, gate="shapes")
def halves_swapped(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """The activation on up, not on gate."""
    return geglu_torch(up, gate, profile=profile)


@red("geglu", profile="two_step", gate="shapes")
def both_halves(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation on both."""
    return F.gelu(gate, approximate="tanh") * F.gelu(up, approximate="tanh")


@red("geglu", profile="two_step", gate="shapes")
def erf_form(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The erf form where the tanh form is named."""
    return F.gelu(gate) * up


@red("geglu", profile="two_step", gate="shapes")
def silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Another model's activation."""
    return F.silu(gate) * up


@red("geglu", profile="once", gate="stress")
def overflowing_tanh(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """tanh from exp(2 u), infinity over infinity from 10 on."""
    wide = gate.float()
    grown = torch.exp(2.0 * C * (wide + K * wide * wide * wide))
    activated = 0.5 * wide * (1.0 + (grown - 1.0) / (grown + 1.0))
    return (activated * up.float()).to(gate.dtype)


# -- roundings


@red("geglu", profile="once", gate="exact")
def two_roundings(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation rounded where only the end is named."""
    return geglu_torch(gate, up, profile="two_step")


@red("geglu", profile="once", gate="shapes", name="torch.F.gelu")
def functional(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """torch's two kernels, one after the other, where one rounding is named."""
    return F.gelu(gate, approximate="tanh") * up


@red("geglu", profile="two_step", gate="exact")
def one_rounding(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation kept in fp32 where its rounding is named."""
    return geglu_torch(gate, up, profile="once")


@red(
    "geglu",
    profile="two_step",
    gate="shapes",
    name="transformers.NewGELUActivation",
    requires=NEEDS,
)
def step_by_step(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """transformers' operator by operator GELU where fp32 inside is named."""
    from transformers.activations import NewGELUActivation

    product: torch.Tensor = NewGELUActivation()(gate) * up
    return product


@red("geglu", profile="each_op", gate="shapes")
def constants_in_fp32(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """MLX's steps with constants that are not rounded."""
    cube = gate.float().pow(3).to(gate.dtype)
    return (gate * 0.5) * (1.0 + torch.tanh((gate + cube * K) * C)) * up


@red("geglu", profile="each_product", gate="exact")
def cube_in_one(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The cube rounded once: a product kept in fp32."""
    cube = gate.float().pow(3).to(gate.dtype)
    return (gate * 0.5) * (1.0 + torch.tanh((gate + cube * K) * C)) * up


@red("geglu", profile="each_op", gate="shapes")
def sum_in_fp32(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate + k cube and the step after it fused: `inner` is not rounded."""
    k, c = (float(torch.tensor(number, dtype=gate.dtype)) for number in (K, C))
    scaled = gate.float().pow(3).to(gate.dtype) * k
    arg = ((gate.float() + scaled.float()) * c).to(gate.dtype)
    return (gate * 0.5) * (1.0 + torch.tanh(arg)) * up


@red("geglu", profile="two_step", gate="exact")
def truncated_store(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The last rounding cuts the bits below."""
    wide = F.gelu(gate, approximate="tanh").float() * up.float()
    return (wide.view(torch.int32) & -65536).view(torch.float32).to(gate.dtype)


# -- places


@red("geglu", profile="two_step", gate="shapes")
def neighbour_column(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """up read one column further."""
    return F.gelu(gate, approximate="tanh") * up.roll(-1, 1)


@red("geglu", profile="two_step", gate="shapes")
def interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate and up taken as even and odd columns of one row that holds one after the other."""
    row = torch.cat([gate, up], 1)
    return F.gelu(row[:, 0::2], approximate="tanh") * row[:, 1::2]


@red("geglu", profile="two_step", gate="bounds")
def writes_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Leaves the activation in its input."""
    gate.copy_(F.gelu(gate, approximate="tanh"))
    return gate * up


# -- legal variants


@green("geglu", profile=("two_step", "once"))
def in_float64(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """Every step in float64, rounded where the profile says so."""
    wide = gate.double()
    activated = 0.5 * wide * (1.0 + torch.tanh((wide + K * wide**3) * C))
    if profile == "two_step":
        activated = activated.float().to(gate.dtype).double()
    return (activated * up.double()).float().to(gate.dtype)


@green("geglu", profile=("two_step", "once"))
def fused_multiply_add(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """The cubic by addcmul: products that may be fused into the sum."""
    wide = gate.float()
    inner = torch.addcmul(wide, wide * wide * wide, torch.full_like(wide, K))
    activated = 0.5 * wide * (1.0 + torch.tanh(inner * C))
    if profile == "two_step":
        activated = activated.to(gate.dtype).float()
    return (activated * up.float()).to(gate.dtype)


@green("geglu", profile="two_step")
def in_chunks(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Columns in chunks of 1,000."""
    parts = zip(gate.split(1000, dim=1), up.split(1000, dim=1), strict=True)
    return torch.cat([F.gelu(g, approximate="tanh") * u for g, u in parts], 1)
