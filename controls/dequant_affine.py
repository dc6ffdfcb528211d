"""Planted affine dequantisers: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.embed_affine import big_endian_fields, whole_word_fields
from contract.kernels.affine_packing import affine_values, unpack
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("dequant_affine", profile="once", gate="exact")
def big_endian_stream(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Codes are taken from the top of each word."""
    codes = big_endian_fields(words, int(bits))
    return affine_values(codes, scales, biases).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact", bits=("3", "5", "6"))
def whole_words(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """No code crosses a word."""
    codes = whole_word_fields(words, int(bits))
    return affine_values(codes, scales, biases).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def pairs_exchanged(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The second code of each pair comes first."""
    codes = unpack(words, int(bits)).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return affine_values(codes, scales, biases).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def scale_of_the_neighbour(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Group g takes the scale of group g + 1."""
    return affine_values(unpack(words, int(bits)), scales.roll(-1, -1), biases).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def groups_of_twice_the_size(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Column j is of group j // (2 g)."""
    codes = unpack(words, int(bits))
    at = torch.arange(codes.shape[-1]) // (2 * codes.shape[-1] // scales.shape[-1])
    return (codes.float() * scales.float()[:, at] + biases.float()[:, at]).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def group_edge_one_late(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The first column of each group takes the one before."""
    codes = unpack(words, int(bits))
    at = (torch.arange(codes.shape[-1]) - 1).clamp(min=0) // (codes.shape[-1] // scales.shape[-1])
    return (codes.float() * scales.float()[:, at] + biases.float()[:, at]).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def bias_dropped(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """q s alone."""
    return affine_values(unpack(words, int(bits)), scales, biases * 0.0).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def bias_as_a_zero_point(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """(q + b) s: the bias in units of the scale."""
    size = words.shape[-1] * 32 // int(bits) // scales.shape[-1]
    codes = unpack(words, int(bits)).unflatten(-1, (-1, size)).float()
    wide = (codes + biases[..., None].float()) * scales[..., None].float()
    result: torch.Tensor = wide.flatten(-2).to(scales.dtype)
    return result


@red("dequant_affine", profile="each_op", gate="exact")
def product_not_rounded(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """One rounding of q s + b."""
    return affine_values(unpack(words, int(bits)), scales, biases).to(scales.dtype)


@red("dequant_affine", profile="once", gate="exact")
def product_rounded(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """q s in bf16 before the bias."""
    codes = unpack(words, int(bits))
    return affine_values(codes, scales, biases, each_op=True).to(scales.dtype)


@green("dequant_affine", profile="once")
def in_float64(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """Every step is kept wider."""
    size = words.shape[-1] * 32 // int(bits) // scales.shape[-1]
    codes = unpack(words, int(bits)).unflatten(-1, (-1, size)).double()
    wide = codes * scales[..., None].double() + biases[..., None].double()
    result: torch.Tensor = wide.flatten(-2).float().to(scales.dtype)
    return result


@green("dequant_affine", profile="once")
def looked_up(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str
) -> torch.Tensor:
    """The 2^b values of each group are computed once and picked by code."""
    codes, groups = unpack(words, int(bits)), scales.shape[-1]
    values = torch.arange(1 << int(bits)).float() * scales[..., None].float()
    values = (values + biases[..., None].float()).to(scales.dtype)
    picked = values.gather(-1, codes.unflatten(-1, (groups, -1)).long())
    return picked.flatten(-2)
