"""torch's activations, as users call them, as implementations of our contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = lazy("torch"), lazy("torch.nn.functional")


@implementation("softcap", name="torch.ops.softcap", profile=("each_op", "float32"))
def softcap_operators(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """The three operators of Gemma 2's modelling code: each result is stored in x's format."""
    return torch.tanh(x / cap) * cap


def functional_gelu(x: torch.Tensor, *, form: str) -> torch.Tensor:
    """torch.nn.functional.gelu, approximate='tanh' or 'none'."""
    return F.gelu(x, approximate="tanh" if form == "tanh" else "none")


implementation("gelu", name="torch.F.gelu", profile="once")(functional_gelu)
# Not the erf form in fp32: torch builds with MKL compute x times its normal distribution function there, which is
# 4.5 2^-24 off the true one (2 ulps of erf are 2) and loses the sign of -0 (torch 2.13, x86_64, 2 * 10^5 values of N(0, 1)).
implementation("gelu", name="torch.F.gelu", profile="float32", form="tanh")(functional_gelu)


@implementation("geglu", name="torch.F.gelu", profile="two_step")
def functional_geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, as Gemma's MLP computes it."""
    return F.gelu(gate, approximate="tanh") * up


@implementation("swiglu", name="torch.F.silu", profile=("two_step", "float32"))
def functional_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, as the MLPs of Qwen3 and Llama compute it."""
    return F.silu(gate) * up
