"""MLX's norms and soft cap."""

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


@implementation("rms_norm", name="mlx.fast.rms_norm", profile="two_step", requires=NEEDS, gain="w")
@implementation(
    "rms_norm", name="mlx.fast.rms_norm", profile=("once", "float32"), requires=NEEDS, gain="none"
)
@implementation("rms_norm", name="mlx.fast.rms_norm", profile="float32", requires=NEEDS, gain="w")
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float) -> Any:
    """The normalised row is rounded before the gain."""
    if weight is None:
        return on_cpu(lambda row: mx.fast.rms_norm(row, None, eps), x)
    return on_cpu(lambda row, gain: mx.fast.rms_norm(row, gain, eps), x, weight)


@implementation(
    "layer_norm", name="mlx.fast.layer_norm", profile=("each_op", "float32"), requires=NEEDS
)
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float) -> Any:
    """Norm, gain and bias, rounded after each."""
    return on_cpu(lambda *given: mx.fast.layer_norm(*given, eps), x, weight, bias)


# Not in fp32: its tanh is up to 2.1 ulps off there, its exp, and so its softmax, one more for every unit of the argument.
@implementation("softcap", name="mlx.softcap", profile="each_op", requires=NEEDS)
def softcap(x: torch.Tensor, *, cap: float) -> Any:
    """The three operators that mlx-lm's Gemma writes."""
    return on_cpu(lambda row: mx.tanh(row / cap) * cap, x)
