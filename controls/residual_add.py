"""Planted residual sums: other operands and roundings, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("residual_add", profile=("once", "float32"), gate="exact")
def stale_branch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The stream is handed on without the branch."""
    return a.clone()


@red("residual_add", profile=("once", "float32"), gate="exact")
def previous_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The branch of the row before."""
    return a + b.roll(1, 0)


@red("residual_add", profile=("once", "float32"), gate="exact")
def shifted_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The branch is read one element further on."""
    return a + b.roll(-1, -1)


@red("residual_add", profile=("once", "float32"), gate="exact")
def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a - b."""
    return a - b


@red("residual_add", profile="once", gate="exact")
def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The store cuts the low half of the fp32 word off."""
    wide = a.float() + b.float()
    cut = (wide.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(wide.isnan(), wide.bfloat16(), cut)


@red("residual_add", profile="once", gate="exact")
def ties_away(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Half a step is added to the word before its low half is cut off."""
    wide = a.float() + b.float()
    cut = ((wide.view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(wide.isfinite(), cut, wide.bfloat16())


@red("residual_add", profile="once", gate="stress")
def through_fp16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum is held in fp16, which ends at 65,504."""
    return (a.half() + b.half()).bfloat16()


@red("residual_add", profile="float32", gate="exact")
def through_bf16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum is rounded to bf16 on the way."""
    return (a.bfloat16() + b.bfloat16()).float()


@red("residual_add", profile="once", gate="bounds")
def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The stream is overwritten, which only an implementation that says so may do."""
    return a.add_(b).clone()


@green("residual_add", profile=("once", "float32"))
def in_float64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum is kept wider, then rounded through fp32."""
    return (a.double() + b.double()).float().to(a.dtype)


@green("residual_add", profile=("once", "float32"))
def multiply_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As b times one plus a."""
    return torch.addcmul(a, b, torch.ones_like(b))


@green("residual_add", profile=("once", "float32"))
def in_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """96 columns at a time."""
    pairs = zip(a.split(96, -1), b.split(96, -1), strict=True)
    return torch.cat([x + y for x, y in pairs], -1)
