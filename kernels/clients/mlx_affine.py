"""MLX's affine-quantised weights: made and read.

Its product with them is a red control: on the CPU it adds up in the format of its operands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.affine_packing import group_size, unpack
from contract.kernels.clients.mlx_arrays import NEEDS, on_cpu
from contract.lazy import lazy

if TYPE_CHECKING:
    import mlx.core as mx
    import torch
else:
    mx, torch = lazy("mlx.core"), lazy("torch")


@implementation("dequant_affine", name="mlx.dequantize", profile="each_op", requires=NEEDS)
def dequantize(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> Any:
    """The CPU's operators: q s is rounded, then the sum."""
    group = group_size(words.shape[-1] * 32 // int(bits), scales.shape[-1])
    return on_cpu(mx.dequantize, words, scales, biases, group_size=group, bits=int(bits))


@implementation("embed_affine", name="mlx.QuantizedEmbedding", profile="each_op", requires=NEEDS)
def embedding(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> Any:
    """mlx.nn.QuantizedEmbedding's rows, times the model's factor in their format."""
    group = group_size(words.shape[-1] * 32 // int(bits), scales.shape[-1])

    def rows(i: Any, w: Any, s: Any, b: Any, factor: Any) -> Any:
        row = mx.dequantize(w[i], s[i], b[i], group_size=group, bits=int(bits))
        return row * factor.astype(row.dtype)

    return on_cpu(rows, ids, words, scales, biases, scale)


@implementation(
    "quantize_affine",
    name="mlx.quantize",
    profile=("after_codes", "after_codes_fp16"),
    requires=NEEDS,
)
def quantize(x: torch.Tensor, *, bits: str) -> Any:
    """The codes are unpacked, so that each can be judged."""
    words, scale, bias = on_cpu(mx.quantize, x, group_size=x.shape[-1], bits=int(bits))
    return unpack(words, int(bits)).to(torch.uint8), scale.squeeze(-1), bias.squeeze(-1)
