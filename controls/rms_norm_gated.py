"""Planted gated RMS norms: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.rms_norm import inverse_rms
from contract.kernels.clients.transformers_norms import NEEDS, qwen3_5_gated
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def gained(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The row after norm and gain, each rounded."""
    return (x.float() * inverse_rms(x.float(), eps)).to(x.dtype) * weight


@red("rms_norm_gated", profile="three_step", gate="exact")
def silu_rounded(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """silu of the gate is rounded to bf16 before the product."""
    return gained(x, weight, eps) * torch.nn.functional.silu(gate)


@red("rms_norm_gated", profile=("three_step", "once"), gate="shapes")
def gate_before_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The gated row is normalised."""
    gated = x.float() * torch.nn.functional.silu(gate.float())
    return (gated * inverse_rms(gated, eps) * weight.float()).to(x.dtype)


@red("rms_norm_gated", profile="three_step", gate="shapes")
def sigmoid_for_silu(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The gate is a sigmoid."""
    return (gained(x, weight, eps).float() * torch.sigmoid(gate.float())).to(x.dtype)


@red("rms_norm_gated", profile="three_step", gate="exact")
def normed_not_rounded(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """The first rounding is left out."""
    scaled = (x.float() * inverse_rms(x.float(), eps) * weight.float()).to(x.dtype)
    return (scaled.float() * torch.nn.functional.silu(gate.float())).to(x.dtype)


@red("rms_norm_gated", profile="once", gate="exact", requires=NEEDS)
def qwen3_5(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> object:
    """Qwen3.5 rounds three times."""
    return qwen3_5_gated(x, gate, weight, eps=eps)


@green("rms_norm_gated", profile="three_step")
def through_the_sigmoid(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """silu as z times the sigmoid, sums from the last column."""
    silu = gate.float() * torch.sigmoid(gate.float())
    flipped = gained(x.flip(-1), weight.flip(-1), eps).flip(-1)
    return (flipped.float() * silu).to(x.dtype)


@green("rms_norm_gated", profile="once")
def in_float64(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Every step is kept wider."""
    wide = x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + eps)
    silu = gate.double() / (1.0 + torch.exp(-gate.double()))
    return (wide * weight.double() * silu).float().to(x.dtype)
