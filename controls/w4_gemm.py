"""Planted products of rows with dequantised four-bit weights: faults, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.packing import nibbles_of
from contract.kernels.w4_gemm import dequantised
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("bf16", "fp16")


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The weight in x's format, an fp32 sum, one rounding."""
    return (x.float() @ weight.to(x.dtype).float().t()).to(x.dtype)


@red("w4_gemm", profile=BOTH, gate="exact")
def weight_kept(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """The weight is not rounded."""
    weight = dequantised(words, scales, zeros)
    return (x.float() @ weight.t()).to(x.dtype)


@red("w4_gemm", profile="fp16", gate="exact", block="128")
def weight_in_bf16(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The weight is rounded to the other narrow format."""
    return product(x, dequantised(words, scales, zeros).bfloat16().float())


@red("w4_gemm", profile="fp16", gate="exact", block="128")
def zero_point_times_scale_rounded(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """q s - z s in fp16, each product rounded."""
    n, blocks = scales.shape
    codes = nibbles_of(words).reshape(n, blocks, -1).half()
    weight = codes * scales[..., None] - (zeros.half() * scales)[..., None]
    return product(x, weight.reshape(n, -1))


@red("w4_gemm", profile="fp16", gate="shapes", block="128")
def zero_point_dropped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """w = q s."""
    return product(x, dequantised(words, scales, torch.zeros_like(zeros)))


@red("w4_gemm", profile=BOTH, gate="shapes")
def nibbles_swapped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """The high nibble of a byte comes first."""
    pairs = words.contiguous().view(torch.uint8)
    return product(x, dequantised((pairs << 4 | pairs >> 4).view(torch.int32), scales, zeros))


@red("w4_gemm", profile="fp16", gate="exact", block="128")
def block_edge_shifted(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Input k takes the scale and zero point of block (k + 1) // 128."""
    at = ((torch.arange(x.shape[1]) + 1) // 128).clamp(max=scales.shape[1] - 1)
    return product(x, (nibbles_of(words).float() - zeros.float()[:, at]) * scales.float()[:, at])


@red("w4_gemm", profile=BOTH, gate="exact")
def split_over_inputs_in_the_narrow_format(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """Two partial sums, each rounded before they are added."""
    weight, half = dequantised(words, scales, zeros), x.shape[1] // 2
    return product(x[:, :half], weight[:, :half]) + product(x[:, half:], weight[:, half:])


@red("w4_gemm", profile=BOTH, gate="exact")
def last_input_lost(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """k - 1 inputs."""
    return product(x[:, :-1], dequantised(words, scales, zeros)[:, :-1])


@red("w4_gemm", profile=BOTH, gate="exact")
def rows_in_tiles_of_16(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """Rows beyond the last whole tile of 16 are those of the tile before."""
    out = product(x, dequantised(words, scales, zeros))
    tail = len(x) % 16
    if len(x) > 16 and tail:
        out[-tail:] = out[-16 - tail : -16]
    return out


@green("w4_gemm", profile=BOTH)
def one_input_after_the_other(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """A running sum over k."""
    weight = dequantised(words, scales, zeros).to(x.dtype).float()
    total = torch.zeros(len(x), len(words))
    for k in range(x.shape[1]):
        total = torch.addcmul(total, x[:, k, None].float(), weight[:, k])
    return total.to(x.dtype)


@green("w4_gemm", profile=BOTH)
def split_over_inputs(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """Blocks of 128 inputs, added from the last."""
    weight = dequantised(words, scales, zeros).to(x.dtype).float()
    total = torch.zeros(len(x), len(words))
    for of, part in reversed([*zip(x.float().split(128, 1), weight.split(128, 1), strict=True)]):
        total = total + of @ part.t()
    return total.to(x.dtype)
