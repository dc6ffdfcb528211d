"""The gguf package's own reading of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import implementation
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@implementation(
    "dequant_gguf", name="gguf.dequantize", profile="float32", requires=("gguf.quants",)
)
def dequantize(blocks: torch.Tensor, *, kind: str) -> torch.Tensor:
    """NumPy operators in fp32: q d, then plus m."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as read

    with np.errstate(all="ignore"):
        return torch.from_numpy(read(blocks.numpy(), GGMLQuantizationType[kind.upper()]))
