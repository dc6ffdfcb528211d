"""Planted linear layers with affine weights: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.embed_affine import big_endian_fields, whole_word_fields
from contract.kernels.affine_packing import affine_values, unpack
from contract.kernels.clients.mlx_arrays import NEEDS, on_cpu
from contract.lazy import lazy

if TYPE_CHECKING:
    import mlx.core as mx
    import torch
else:
    mx, torch = lazy("mlx.core"), lazy("torch")

BOTH = ("dequantised", "fused")


def weights(codes: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Rounded weights, as of the profile dequantised."""
    return affine_values(codes, scales, biases).to(scales.dtype).float()


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x W^T in fp32, rounded once."""
    return (x.float() @ w.T).to(x.dtype)


@red("qlinear_affine", profile="dequantised", gate="exact")
def big_endian_stream(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Codes are taken from the top of each word."""
    return product(x, weights(big_endian_fields(words, int(bits)), scales, biases))


@red("qlinear_affine", profile="dequantised", gate="exact", bits=("3", "5", "6"))
def whole_words(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """No code crosses a word."""
    return product(x, weights(whole_word_fields(words, int(bits)), scales, biases))


@red("qlinear_affine", profile="dequantised", gate="exact")
def pairs_exchanged(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The second code of each pair comes first."""
    codes = unpack(words, int(bits)).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return product(x, weights(codes, scales, biases))


@red("qlinear_affine", profile="dequantised", gate="exact")
def scale_of_the_neighbour(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Group g takes the scale of group g + 1."""
    return product(x, weights(unpack(words, int(bits)), scales.roll(-1, -1), biases))


@red("qlinear_affine", profile="dequantised", gate="exact")
def group_edge_one_late(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The first column of each group takes the one before."""
    at = (torch.arange(x.shape[-1]) - 1).clamp(min=0) // (x.shape[-1] // scales.shape[-1])
    w = unpack(words, int(bits)).float() * scales.float()[:, at] + biases.float()[:, at]
    return product(x, w.to(x.dtype).float())


@red("qlinear_affine", profile="dequantised", gate="exact")
def first_group_of_a_wide_tile(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """(tile / group) is 0 in integers where a tile of 16 is narrower than the group: all take the first."""
    first = torch.zeros(x.shape[-1], dtype=torch.int64)
    w = unpack(words, int(bits)).float() * scales.float()[:, first] + biases.float()[:, first]
    return product(x, w.to(x.dtype).float())


@red("qlinear_affine", profile=BOTH, gate="exact")
def bias_dropped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Codes and scales alone."""
    return product(x, weights(unpack(words, int(bits)), scales, biases * 0.0))


@red("qlinear_affine", profile="fused", gate="exact")
def bias_of_the_last_group(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The sum of x over the whole row goes with one bias."""
    codes = unpack(words, int(bits))
    y = x.float() @ affine_values(codes, scales, biases * 0.0).T
    return (y + x.float().sum(-1, keepdim=True) * biases[:, -1].float()).to(x.dtype)


@red("qlinear_affine", profile="dequantised", gate="exact")
def weights_not_rounded(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The product reads q s + b as it is."""
    return product(x, affine_values(unpack(words, int(bits)), scales, biases))


@red("qlinear_affine", profile="fused", gate="exact")
def weights_rounded(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The product reads bf16 weights."""
    return product(x, weights(unpack(words, int(bits)), scales, biases))


@red("qlinear_affine", profile="dequantised", gate="exact")
def bf16_accumulator(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The running sum is rounded to bf16 after every 16 columns."""
    w = weights(unpack(words, int(bits)), scales, biases)
    total = torch.zeros(x.shape[0], w.shape[0], dtype=x.dtype)
    for a, b in zip(x.float().split(16, -1), w.split(16, -1), strict=True):
        total = (total + a @ b.T).to(x.dtype)
    return total


@red("qlinear_affine", profile="dequantised", gate="exact")
def last_block_dropped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The last 32 columns are not summed."""
    w = weights(unpack(words, int(bits)), scales, biases)
    return product(x[:, :-32], w[:, :-32])


@red("qlinear_affine", profile="dequantised", gate="exact")
def tile_of_64_columns(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Output columns past the first 64 take the weights from the start again."""
    again = torch.arange(words.shape[0]) % 64
    codes = unpack(words[again], int(bits))
    return product(x, weights(codes, scales[again], biases[again]))


@red("qlinear_affine", profile=BOTH, gate="exact", requires=NEEDS)
def mlx_quantized_matmul(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> Any:
    """mlx.quantized_matmul on the CPU: weights, products and sums are all bf16."""
    group = x.shape[-1] // scales.shape[-1]
    how = {"group_size": group, "bits": int(bits)}
    return on_cpu(mx.quantized_matmul, x, words, scales, biases, **how)


@green("qlinear_affine", profile="fused")
def sums_of_groups(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """s sum(x q) + b sum(x) a group: scale and bias are taken out of the sums."""
    groups = scales.shape[-1]
    wide = x.float().unflatten(-1, (groups, -1))
    codes = unpack(words, int(bits)).float().unflatten(-1, (groups, -1))
    sums = torch.einsum("rgk,ngk->rng", wide, codes)
    y = sums * scales.float() + wide.sum(-1)[:, None] * biases.float()
    result: torch.Tensor = y.sum(-1).to(x.dtype)
    return result


@green("qlinear_affine", profile="dequantised")
def from_the_last_block(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Blocks of 32 columns, the last first."""
    w = weights(unpack(words, int(bits)), scales, biases)
    y = torch.zeros(x.shape[0], w.shape[0])
    for start in range(x.shape[-1] - 32, -1, -32):
        y = y + x[:, start : start + 32].float() @ w[:, start : start + 32].T
    return y.to(x.dtype)


@green("qlinear_affine", profile="dequantised")
def in_float64(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """A wider sum."""
    w = weights(unpack(words, int(bits)), scales, biases)
    return (x.double() @ w.double().T).float().to(x.dtype)
