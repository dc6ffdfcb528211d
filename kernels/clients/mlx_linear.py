"""MLX's dense layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.mlx_arrays import NEEDS, on_cpu
from contract.lazy import lazy

if TYPE_CHECKING:
    import mlx.core as mx
    import torch
else:
    mx = lazy("mlx.core")


@implementation(
    "linear", name="mlx.nn.Linear", profile=("once", "float16", "float32"), requires=NEEDS
)
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """addmm with a bias, matmul without one."""
    if bias is None:
        return on_cpu(lambda rows, w: rows @ w.T, x, weight)
    return on_cpu(lambda rows, w, b: mx.addmm(b, rows, w.T), x, weight, bias)


@implementation("linear", name="mlx.matmul", profile="bias_after", requires=NEEDS)
def matmul_then_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Two operators, each of which stores its result."""
    return on_cpu(lambda rows, w, b: rows @ w.T + b, x, weight, bias)
