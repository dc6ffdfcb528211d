"""Liger's RMS norm, a Triton kernel, in its casting modes; compiled with and without fused multiplications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation

if TYPE_CHECKING:
    import torch

# One list for all clients of Liger, so that one process imports it for all workers.
NEEDS = (
    "triton",
    "liger_kernel.ops.geglu",
    "liger_kernel.ops.rms_norm",
    "liger_kernel.ops.rope",
)
#: Triton 3.9 fuses unless told otherwise, 3.10 does not: a name for each.
FUSION = {"": False, ".fused": True}


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, gain: str, mode: str) -> Any:
    """The operator as its modules call it; it copies rows that are not contiguous."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    offset = 1.0 if gain == "1+w" else 0.0
    return LigerRMSNormFunction.apply(x, weight, eps, offset, mode)


def llama(x: torch.Tensor, weight: torch.Tensor, *, eps: float, gain: str) -> Any:
    """Casting mode llama: the normed row in bf16, then the gain."""
    return rms_norm(x, weight, eps, gain, "llama")


def gemma(x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float, gain: str) -> Any:
    """Casting mode gemma: fp32 to the end, one rounding."""
    return rms_norm(x, weight, eps, gain, "gemma")


for _suffix, _fusion in FUSION.items():
    _said: dict[str, Any] = {"engine": "ptx", "requires": NEEDS, "fusion": _fusion}
    implementation("rms_norm", name=f"liger.llama{_suffix}", profile="two_step", **_said)(llama)
    implementation("rms_norm", name=f"liger.gemma{_suffix}", profile=("once", "float32"), **_said)(
        gemma
    )
