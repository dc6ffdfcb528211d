"""The scaled embedding of transformers' Gemma 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.transformers_norms import NEEDS, weighted

if TYPE_CHECKING:
    import torch


@implementation(
    "embed",
    name="transformers.Gemma3TextScaledWordEmbedding",
    profile="once",
    requires=NEEDS,
    scaled="yes",
)
def gemma3(ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> Any:
    """The factor is stored in fp32 and rounded when it is used."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    vocab, width = table.shape
    module = Gemma3TextScaledWordEmbedding(vocab, width, 0, float(scale))
    return weighted(module, table)(ids)
