"""Planted gated projections: halves, roundings and accumulators that kernels have got wrong, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.products import product
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("each", "fused")


def gated(gate: torch.Tensor, up: torch.Tensor, x: torch.Tensor, profile: str) -> torch.Tensor:
    """The right epilogue of two fp32 accumulators."""
    if profile == "each":
        gate, up = gate.to(x.dtype).float(), up.to(x.dtype).float()
    activated = gate / (1.0 + torch.exp(-gate))
    if profile == "each":
        activated = activated.to(x.dtype).float()
    return (activated * up).to(x.dtype)


@red("linear_swiglu", profile=BOTH, gate="exact")
def activation_of_the_other_half(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """silu(up) * gate."""
    return gated(product(x, up_weight, None), product(x, gate_weight, None), x, profile)


@red("linear_swiglu", profile=BOTH, gate="exact")
def outputs_interleaved(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """One product whose outputs are taken for gate, up, gate, up where they are all gates first."""
    joint = product(x, torch.cat([gate_weight, up_weight]), None)
    return gated(joint[:, 0::2], joint[:, 1::2], x, profile)


@red("linear_swiglu", profile="fused", gate="exact")
def gate_rounded(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor
) -> torch.Tensor:
    """The gate's accumulator is stored before the activation."""
    gate = product(x, gate_weight, None).bfloat16().float()
    return gated(gate, product(x, up_weight, None), x, "fused")


@red("linear_swiglu", profile="fused", gate="exact")
def activation_rounded(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor
) -> torch.Tensor:
    """The activation is stored before it meets up."""
    gate = product(x, gate_weight, None)
    activated = (gate / (1.0 + torch.exp(-gate))).bfloat16().float()
    return (activated * product(x, up_weight, None)).to(x.dtype)


@red("linear_swiglu", profile="each", gate="exact")
def nothing_rounded_before_the_end(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor
) -> torch.Tensor:
    """The fused kernel in place of the modules."""
    return gated(product(x, gate_weight, None), product(x, up_weight, None), x, "fused")


@red("linear_swiglu", profile=BOTH, gate="exact")
def accumulators_in_bf16(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The running sums are stored after every 16 columns."""
    sums = []
    for weight in (gate_weight, up_weight):
        total = torch.zeros((x.shape[0], weight.shape[0]))
        for c in range(0, x.shape[-1], 16):
            part = product(x[:, c : c + 16], weight[:, c : c + 16], None)
            total = (total + part).bfloat16().float()
        sums.append(total)
    return gated(sums[0], sums[1], x, profile)


@red("linear_swiglu", profile=BOTH, gate="exact")
def gelu_for_silu(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """GeGLU."""
    gate, up = product(x, gate_weight, None), product(x, up_weight, None)
    if profile == "each":
        gate, up = gate.to(x.dtype).float(), up.to(x.dtype).float()
    activated = torch.nn.functional.gelu(gate, approximate="tanh")
    return ((activated.to(x.dtype) if profile == "each" else activated) * up).to(x.dtype)


@green("linear_swiglu", profile=BOTH)
def one_joint_product(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Gates and ups in one product, columns from the last to the first."""
    joint = x.flip(-1).float() @ torch.cat([gate_weight, up_weight]).flip(-1).float().T
    gate, up = joint.chunk(2, dim=-1)
    return gated(gate, up, x, profile)
