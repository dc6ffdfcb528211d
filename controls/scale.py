"""Planted layer scalars: left out, applied otherwise, rounded otherwise, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("once", "float32")


@red("scale", profile=BOTH, gate="exact")
def left_out(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The stream is handed on unscaled."""
    return h.clone()


@red("scale", profile=BOTH, gate="exact")
def twice(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The scalar is applied in this layer and again before the next one."""
    return h * scalar * scalar


@red("scale", profile=BOTH, gate="exact")
def one_plus(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """1 + s, as gains are stored."""
    return h * (1 + scalar)


@red("scale", profile=BOTH, gate="exact")
def divided(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """h / s."""
    return h / scalar


@red("scale", profile=BOTH, gate="exact")
def first_row_only(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The scalar is not broadcast: only the first row has it."""
    return torch.cat([h[:1] * scalar, h[1:]])


@red("scale", profile="once", gate="exact")
def truncated(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The store cuts the low half of the fp32 word off."""
    wide = h.float() * scalar.float()
    cut = (wide.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(wide.isnan(), wide.bfloat16(), cut)


@red("scale", profile="once", gate="exact")
def scalar_in_e4m3(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The scalar has been stored in 8 bits."""
    return h * scalar.to(torch.float8_e4m3fn).to(h.dtype)


@red("scale", profile="float32", gate="exact")
def through_bf16(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The product is rounded to bf16 on the way."""
    return (h * scalar).bfloat16().float()


@green("scale", profile=BOTH)
def in_float64(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The product is kept wider, then rounded through fp32."""
    return (h.double() * scalar.double()).float().to(h.dtype)


@green("scale", profile=BOTH)
def with_a_python_number(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """The scalar is read once, on the host."""
    return h * float(scalar)


@green("scale", profile=BOTH)
def in_blocks(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """96 columns at a time."""
    return torch.cat([x * scalar for x in h.split(96, -1)], -1)
