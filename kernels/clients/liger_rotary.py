"""Liger's rotary embedding, a Triton kernel; compiled with and without fused multiplications.

Its arithmetic is that of the tables: bf16 tables round both products, unless the compiler fuses one of them with the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.liger_norms import NEEDS

if TYPE_CHECKING:
    import torch


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """The first dims of each head; it turns a contiguous operand in place, so that it is given a copy here."""
    from liger_kernel.ops.rope import LigerRopeFunction

    q = x.clone().transpose(0, 1)[None]
    k = x[:, :1].clone().transpose(0, 1)[None]
    turned, _ = LigerRopeFunction.apply(q, k, cos, sin, None, 1, 2 * cos.shape[-1])
    return turned[0].transpose(0, 1)


_SAID: dict[str, Any] = {"engine": "ptx", "requires": NEEDS, "pairing": "halves"}
implementation("rope", name="liger", profile=("each_op", "once", "float32"), fusion=False, **_SAID)(
    rope
)
# under each_op a fused product is not rounded: that is the planted fault liger.fused
implementation("rope", name="liger.fused", profile=("once", "float32"), fusion=True, **_SAID)(rope)
