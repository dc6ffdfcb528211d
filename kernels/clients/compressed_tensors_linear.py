"""compressed-tensors' weights of packed four-bit codes, dequantised by it and multiplied by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.packing import pack_zero_points
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

NEEDS = ("compressed_tensors.compressors.pack_quantized.base", "compressed_tensors.quantization")
NAME = "compressed_tensors.pack_quantized"


def decompressed(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, group: int
) -> torch.Tensor:
    """The weight (n, k) in the format of its scales."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    given = {
        "weight_packed": words,
        "weight_scale": scales,
        "weight_shape": torch.tensor([len(words), 8 * words.shape[1]]),
    }
    if zeros is not None:
        given["weight_zero_point"] = torch.from_numpy(pack_zero_points(zeros.numpy(), 4))
    how: Any = {"num_bits": 4, "symmetric": zeros is None, "strategy": "group", "group_size": group}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**how))
    weight: torch.Tensor = PackedQuantizationCompressor.decompress(given, scheme)["weight"]
    return weight


@implementation("w4_gemv", name=NAME, profile="dequantised", requires=NEEDS)
@implementation("w4_gemm", name=NAME, profile=("bf16", "fp16"), requires=NEEDS)
def linear(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    block: str,
) -> torch.Tensor:
    """The weight is rounded, then the product."""
    return torch.nn.functional.linear(x, decompressed(words, scales, zeros, int(block)))
