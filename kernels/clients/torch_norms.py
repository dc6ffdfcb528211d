"""torch's own norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@implementation(
    "rms_norm", name="torch.F.rms_norm", profile=("once", "float32"), gain=("w", "none")
)
def torch_rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float
) -> torch.Tensor:
    """fp32 inside, one rounding."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


# A value meets at most 16 merges in a chunk, 12 in the cascade of 64 chunks, 16 over the lanes (ATen moments_utils.h).
@implementation("layer_norm", name="torch.F.layer_norm", profile="once", order={"merged": 48})
def torch_layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Merged moments; in bf16 on the CPU the mean is folded into an offset."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
