"""transformers' activation modules as implementations of our contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.kernels.clients.transformers_norms import NEEDS

if TYPE_CHECKING:
    import torch


@implementation(
    "geglu",
    name="transformers.NewGELUActivation",
    profile="each_product",
    requires=NEEDS,
)
def new_gelu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation of T5 1.1's gated layer: seven torch operators, each stored in bf16."""
    from transformers.activations import NewGELUActivation

    product: torch.Tensor = NewGELUActivation()(gate) * up
    return product
