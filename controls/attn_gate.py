"""Planted output gates, and a legal variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("attn_gate", profile="each", gate="exact")
def halves_swapped(o: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
    """The gate is taken from the query's half."""
    return o * torch.sigmoid(fused[..., : o.shape[-1]].float()).to(o.dtype)


@red("attn_gate", profile="each", gate="shapes")
def halves_interleaved(o: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
    """The gate is every second value."""
    return o * torch.sigmoid(fused[..., 1::2].float()).to(o.dtype)


@red("attn_gate", profile="each", gate="exact")
def silu_gate(o: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
    """g * sigmoid(g) in place of sigmoid(g)."""
    return o * torch.nn.functional.silu(fused[..., o.shape[-1] :].float()).to(o.dtype)


@red("attn_gate", profile="each", gate="exact")
def gate_not_rounded(o: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
    """One rounding at the end."""
    return (o.float() * torch.sigmoid(fused[..., o.shape[-1] :].float())).to(o.dtype)


@green("attn_gate", profile="each")
def by_exp(o: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-g))."""
    return o * (1.0 / (1.0 + torch.exp(-fused[..., o.shape[-1] :].float()))).to(o.dtype)
