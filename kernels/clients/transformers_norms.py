"""The RMS norms of transformers' models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

# One list for all clients of transformers, so that one process imports it for all workers.
NEEDS = tuple(
    f"transformers.models.{name}.modeling_{name}"
    for name in ("gemma", "gemma2", "gemma3", "gemma4", "llama", "qwen3", "qwen3_5")
)


def weighted(module: Any, weight: torch.Tensor) -> Any:
    """The module with this weight."""
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


@implementation(
    "rms_norm", name="transformers.GemmaRMSNorm", profile="once", requires=NEEDS, gain="1+w"
)
def gemma(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """1 + w in fp32, one rounding."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    return weighted(GemmaRMSNorm(x.shape[-1], eps), weight)(x)


@implementation(
    "rms_norm", name="transformers.Gemma4RMSNorm", profile="once", requires=NEEDS, gain="w"
)
def gemma4(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """The inverse root as a power, one rounding."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm

    return weighted(Gemma4RMSNorm(x.shape[-1], eps), weight)(x)


@implementation(
    "rms_norm", name="transformers.Gemma4RMSNorm", profile="once", requires=NEEDS, gain="none"
)
def gemma4_weightless(x: torch.Tensor, *, eps: float) -> Any:
    """Without a gain (values of Gemma 4's attention)."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm

    return Gemma4RMSNorm(x.shape[-1], eps, with_scale=False)(x)


@implementation(
    "rms_norm", name="transformers.Qwen3RMSNorm", profile="two_step", requires=NEEDS, gain="w"
)
def qwen3(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """The normalised row is rounded before the gain."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    return weighted(Qwen3RMSNorm(x.shape[-1], eps), weight)(x)


@implementation(
    "rms_norm", name="transformers.LlamaRMSNorm", profile="two_step", requires=NEEDS, gain="w"
)
def llama(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """The normalised row is rounded before the gain."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return weighted(LlamaRMSNorm(x.shape[-1], eps), weight)(x)


@implementation(
    "rms_norm_gated",
    name="transformers.Qwen3_5RMSNormGated",
    profile="three_step",
    requires=NEEDS,
)
def qwen3_5_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """Norm, gain and gate, rounded after each."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

    return weighted(Qwen3_5RMSNormGated(x.shape[-1], eps), weight)(x, gate)
