"""Liger's kernels under profiles whose roundings they do not have, and a launcher that trusts the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import red
from contract.kernels.clients import liger_activations, liger_norms, liger_rotary

if TYPE_CHECKING:
    from torch import Tensor

SAID: dict[str, Any] = {"engine": "ptx", "requires": liger_norms.NEEDS}

red("rms_norm", profile="once", gate="exact", name="liger.llama", gain="w", **SAID)(
    liger_norms.llama
)
red("rms_norm", profile="two_step", gate="exact", name="liger.gemma", gain=("w", "1+w"), **SAID)(
    liger_norms.gemma
)
red("geglu", profile="once", gate="exact", name="liger", **SAID)(liger_activations.geglu)
# a fused product is not rounded before the sum
red(
    "rope",
    profile="each_op",
    gate="exact",
    name="liger.fused",
    fusion=True,
    pairing="halves",
    **SAID,
)(liger_rotary.rope)


@red("rms_norm", profile=("once", "two_step"), gate="shapes", name="liger.none", gain="w", **SAID)
def casting_mode_none(x: Tensor, weight: Tensor, *, eps: float, gain: str) -> Any:
    """Casting mode none: squares, their sum and the mean are bf16."""
    return liger_norms.rms_norm(x, weight, eps, gain, "none")


@red("geglu", profile="two_step", gate="shapes", name="liger.geglu_forward", **SAID)
def rows_without_gaps(gate: Tensor, up: Tensor) -> Any:
    """The launcher behind the operator reads both operands by the strides of its result."""
    from liger_kernel.ops.geglu import geglu_forward

    return geglu_forward(gate, up)[2]
