"""Planted lookups in affine tables: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.affine_packing import affine_values, unpack
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Tensors = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]


def picked(
    ids: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor
) -> Tensors:
    """The rows of the three tables."""
    return words[ids], scales[ids], biases[ids]


def scaled(
    codes: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """What follows the codes under two_step."""
    return affine_values(codes, scales, biases).to(scales.dtype) * scale.to(scales.dtype)


def big_endian_fields(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The same stream read from its high end: code 0 in the top bits of word 0."""
    stream = ((words[..., None] >> torch.arange(31, -1, -1).int()) & 1).flatten(-2)
    result: torch.Tensor = (
        stream.unflatten(-1, (-1, bits)) << torch.arange(bits - 1, -1, -1).int()
    ).sum(-1)
    return result


def whole_word_fields(words: torch.Tensor, bits: int) -> torch.Tensor:
    """32 // bits codes a word, the rest of its bits left out; the last codes repeat."""
    each = 32 // bits
    shifts = (torch.arange(each) * bits).int()
    fields = ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)
    columns = words.shape[-1] * 32 // bits
    return fields[..., torch.arange(columns).clamp(max=fields.shape[-1] - 1)]


# -- the stream


@red("embed_affine", profile="two_step", gate="exact")
def big_endian_stream(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Codes are taken from the top of each word."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(big_endian_fields(w, int(bits)), s, b, scale)


@red("embed_affine", profile="two_step", gate="exact", bits=("3", "5", "6"))
def whole_words(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """No code crosses a word."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(whole_word_fields(w, int(bits)), s, b, scale)


@red("embed_affine", profile="two_step", gate="exact")
def pairs_exchanged(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """The second code of each pair comes first, as where high nibbles are."""
    w, s, b = picked(ids, words, scales, biases)
    codes = unpack(w, int(bits)).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return scaled(codes, s, b, scale)


@red("embed_affine", profile="two_step", gate="exact")
def signed_codes(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """The top bit of a code is its sign."""
    w, s, b = picked(ids, words, scales, biases)
    codes, half = unpack(w, int(bits)), 1 << (int(bits) - 1)
    return scaled((codes ^ half) - half, s, b, scale)


# -- groups and rows


@red("embed_affine", profile="two_step", gate="exact")
def scale_of_the_neighbour(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Group g takes the scale of group g + 1."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(unpack(w, int(bits)), s.roll(-1, -1), b, scale)


@red("embed_affine", profile="two_step", gate="exact")
def group_edge_one_late(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Column j is of group (j - 1) // g: the first of each group takes the one before."""
    w, s, b = picked(ids, words, scales, biases)
    codes = unpack(w, int(bits))
    group = codes.shape[-1] // s.shape[-1]
    at = (torch.arange(codes.shape[-1]) - 1).clamp(min=0) // group
    row = codes.float() * s.float()[:, at] + b.float()[:, at]
    return row.to(s.dtype) * scale.to(s.dtype)


@red("embed_affine", profile="two_step", gate="exact")
def bias_dropped(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """q s alone."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(unpack(w, int(bits)), s, b * 0.0, scale)


@red("embed_affine", profile="two_step", gate="exact")
def bias_subtracted(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """q s - b: the bias read as a zero point."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(unpack(w, int(bits)), s, -b, scale)


@red("embed_affine", profile="two_step", gate="exact")
def next_id(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Ids that count from 1: the row after, the last one's own."""
    later = (ids + 1).clamp(max=words.shape[0] - 1)
    w, s, b = picked(later, words, scales, biases)
    return scaled(unpack(w, int(bits)), s, b, scale)


@red("embed_affine", profile="two_step", gate="exact")
def scales_of_another_row(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Scales and biases by the row's place in the batch, not by its id."""
    place = torch.arange(ids.shape[0]) % words.shape[0]
    return scaled(unpack(words[ids], int(bits)), scales[place], biases[place], scale)


# -- roundings


@red("embed_affine", profile=("two_step", "each_op"), gate="exact")
def scale_not_rounded(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
    profile: str = "two_step",
) -> torch.Tensor:
    """The factor stays in fp32."""
    w, s, b = picked(ids, words, scales, biases)
    row = affine_values(unpack(w, int(bits)), s, b, each_op=profile == "each_op").to(s.dtype)
    return (row.float() * scale).to(s.dtype)


@red("embed_affine", profile="two_step", gate="exact")
def scale_applied_twice(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Once in the lookup and once by the caller."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(unpack(w, int(bits)), s, b, scale) * scale.to(s.dtype)


@red("embed_affine", profile="two_step", gate="exact")
def scale_folded_into_the_table(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """q R(s f) + R(b f): the factor applied to scales and biases once, when the table is loaded."""
    w, s, b = picked(ids, words, scales, biases)
    factor = scale.to(s.dtype)
    return affine_values(unpack(w, int(bits)), s * factor, b * factor).to(s.dtype)


@red("embed_affine", profile="each_op", gate="exact")
def product_not_rounded(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """One rounding of q s + b."""
    w, s, b = picked(ids, words, scales, biases)
    return scaled(unpack(w, int(bits)), s, b, scale)


@green("embed_affine", profile="two_step")
def in_float64(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """Every step is kept wider."""
    w, s, b = picked(ids, words, scales, biases)
    codes = unpack(w, int(bits)).unflatten(-1, (s.shape[-1], -1)).double()
    row = (codes * s.double()[..., None] + b.double()[..., None]).flatten(-2)
    rounded = row.float().to(s.dtype).double()
    result: torch.Tensor = (rounded * scale.to(s.dtype).double()).float().to(s.dtype)
    return result


@green("embed_affine", profile="two_step")
def whole_table_first(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
) -> torch.Tensor:
    """The table is dequantised and scaled once, rows are looked up in it."""
    return scaled(unpack(words, int(bits)), scales, biases, scale)[ids]
