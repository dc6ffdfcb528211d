"""torch's dense layer, as users call it, as implementations of our contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = lazy("torch"), lazy("torch.nn.functional")


@implementation("linear", name="torch.F.linear", profile=("once", "float16", "float32"))
def functional_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """One rounding, the bias inside it, for rows of two dims."""
    return F.linear(x, weight, bias)


@implementation("linear", name="torch.matmul", profile="bias_after")
def matmul_then_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Two operators, each of which stores its result."""
    return x @ weight.T + bias
