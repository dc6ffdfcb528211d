"""MLX's activations, as its models call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.mlx_arrays import NEEDS, on_cpu
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    from mlx import nn
else:
    nn = lazy("mlx.nn")


@implementation("geglu", name="mlx.nn.gelu_approx", profile="each_op", requires=NEEDS)
def geglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    """gelu_approx(gate) * up."""
    return on_cpu(lambda g, u: nn.gelu_approx(g) * u, gate, up)


@implementation("swiglu", name="mlx.nn.silu", profile="each_op", requires=NEEDS)
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    """silu(gate) * up, silu a product with mx.sigmoid."""
    return on_cpu(lambda g, u: nn.silu(g) * u, gate, up)
