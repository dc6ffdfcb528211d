"""Liger's GeGLU, a Triton kernel; compiled with and without fused multiplications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.liger_norms import FUSION, NEEDS

if TYPE_CHECKING:
    import torch


def geglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    """The activation in fp32, rounded, then its product with up; operands that are not contiguous are copied."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(gate, up)


for _suffix, _fusion in FUSION.items():
    implementation(
        "geglu",
        name=f"liger{_suffix}",
        profile="two_step",
        engine="ptx",
        requires=NEEDS,
        fusion=_fusion,
    )(geglu)
