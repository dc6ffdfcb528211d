"""Planted GELUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = lazy("torch"), lazy("torch.nn.functional")

C = math.sqrt(2.0 / math.pi)
EVERY = ("once", "float32")


def tanh_form(x: torch.Tensor, k: float = 0.044715, c: float = C) -> torch.Tensor:
    """The tanh form in fp32, constants given."""
    wide = x.float()
    squashed = torch.tanh((wide + wide * wide * wide * k) * c)
    return (0.5 * wide * (1.0 + squashed)).to(x.dtype)


# -- the formula


@red("gelu", profile=EVERY, gate="shapes", name="torch.F.gelu.tanh", form="erf")
def functional_tanh(x: torch.Tensor) -> torch.Tensor:
    """torch's tanh form where the erf form is named."""
    return F.gelu(x, approximate="tanh")


@red("gelu", profile=EVERY, gate="shapes", name="torch.F.gelu.erf", form="tanh")
def functional_erf(x: torch.Tensor) -> torch.Tensor:
    """torch's erf form where the tanh form is named."""
    return F.gelu(x)


@red("gelu", profile=EVERY, gate="stress", form="tanh")
def overflowing_tanh(x: torch.Tensor) -> torch.Tensor:
    """tanh from exp(2 u), infinity over infinity from x = 10 on."""
    wide = x.float()
    grown = torch.exp(2.0 * C * (wide + 0.044715 * wide * wide * wide))
    return (0.5 * wide * (1.0 + (grown - 1.0) / (grown + 1.0))).to(x.dtype)


@red("gelu", profile=EVERY, gate="shapes", form="tanh")
def cubic_in_bf16(x: torch.Tensor) -> torch.Tensor:
    """0.044715 held in bf16."""
    return tanh_form(x, k=float.fromhex("0x1.6ep-5"))


@red("gelu", profile=EVERY, gate="shapes", form="tanh")
def short_root(x: torch.Tensor) -> torch.Tensor:
    """sqrt(2 / pi) cut to 0.7978."""
    return tanh_form(x, c=0.7978)


@red("gelu", profile="once", gate="shapes", form="tanh")
def no_cubic(x: torch.Tensor) -> torch.Tensor:
    """The cubic term left out."""
    return tanh_form(x, k=0.0)


@red("gelu", profile="once", gate="shapes", form="tanh")
def sigmoid_form(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x), the quick form."""
    wide = x.float()
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)


@red("gelu", profile="once", gate="shapes", form="erf")
def root_left_out(x: torch.Tensor) -> torch.Tensor:
    """erf(x) in place of erf(x / sqrt(2))."""
    wide = x.float()
    return (0.5 * wide * (1.0 + torch.erf(wide))).to(x.dtype)


@red("gelu", profile="once", gate="shapes", form="erf")
def erf_by_polynomial(x: torch.Tensor) -> torch.Tensor:
    """Abramowitz and Stegun 7.1.25, three terms: 2.5e-5 from erf."""
    wide = x.float()
    z = wide.abs() * math.sqrt(0.5)
    t = 1.0 / (1.0 + 0.47047 * z)
    tail = t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * torch.exp(-z * z)
    return (0.5 * wide * (1.0 + torch.copysign(1.0 - tail, wide))).to(x.dtype)


# -- roundings and places


@red("gelu", profile="once", gate="shapes", form="tanh")
def tanh_in_bf16(x: torch.Tensor) -> torch.Tensor:
    """tanh rounded before 1 is added."""
    wide = x.float()
    squashed = torch.tanh((wide + wide * wide * wide * 0.044715) * C).to(x.dtype).float()
    return (0.5 * wide * (1.0 + squashed)).to(x.dtype)


@red("gelu", profile="once", gate="exact")
def truncated_store(x: torch.Tensor, *, form: str) -> torch.Tensor:
    """The store cuts the bits below."""
    out = F.gelu(x.float(), approximate="tanh" if form == "tanh" else "none")
    return (out.view(torch.int32) & -65536).view(torch.float32).to(x.dtype)


@red("gelu", profile="once", gate="exact")
def saturates_early(x: torch.Tensor, *, form: str) -> torch.Tensor:
    """The identity from 2.5 on, where 1 - y / x is 0.6 %."""
    out = F.gelu(x, approximate="tanh" if form == "tanh" else "none")
    return torch.where(x > 2.5, x, out)


@red("gelu", profile="once", gate="bounds")
def in_place(x: torch.Tensor, *, form: str) -> torch.Tensor:
    """Leaves half of its input behind."""
    out = F.gelu(x, approximate="tanh" if form == "tanh" else "none")
    x.mul_(0.5)
    return out


# -- legal variants


@green("gelu", profile=EVERY)
def in_float64(x: torch.Tensor, *, form: str) -> torch.Tensor:
    """Every step in float64, one rounding."""
    wide = x.double()
    if form == "erf":
        squashed = torch.erf(wide * math.sqrt(0.5))
    else:
        squashed = torch.tanh((wide + 0.044715 * wide**3) * C)
    return (0.5 * wide * (1.0 + squashed)).float().to(x.dtype)


@green("gelu", profile="once", form="tanh")
def sigmoid_of_twice(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(2 u) in float64: the same function, without the cancellation in 1 + tanh."""
    wide = x.double()
    return (wide * torch.sigmoid(2.0 * C * (wide + 0.044715 * wide**3))).float().to(x.dtype)


@green("gelu", profile="once", form="erf")
def erfc_form(x: torch.Tensor) -> torch.Tensor:
    """x / 2 * erfc(-x / sqrt(2)) in float64, without the cancellation in 1 + erf."""
    wide = x.double()
    return (0.5 * wide * torch.erfc(wide * -math.sqrt(0.5))).float().to(x.dtype)


@green("gelu", profile=EVERY, form="tanh")
def fused_multiply_add(x: torch.Tensor) -> torch.Tensor:
    """The cubic by addcmul: products that may be fused into the sum."""
    wide = x.float()
    inner = torch.addcmul(wide, wide * wide * wide, torch.full_like(wide, 0.044715))
    return (0.5 * wide * (1.0 + torch.tanh(inner * C))).to(x.dtype)
