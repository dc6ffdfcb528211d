"""Planted products with four-bit weights: faults that such kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.packing import nibbles_of
from contract.kernels.w4_gemv import Int4Weight, in_chunks, unpacked
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def weight_of(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """(q - z) s in fp32, z = 8 where there is none."""
    n, groups = scales.shape
    zero = 8.0 if zeros is None else zeros.float()[..., None]
    weight = (codes.reshape(n, groups, -1).float() - zero) * scales.float()[..., None]
    return weight.reshape(n, -1)


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One rounding of an fp32 sum."""
    return (x.float() @ weight.float().t()).to(x.dtype)


def slots(words: torch.Tensor) -> torch.Tensor:
    """(n, words, 8): the nibbles of each word."""
    return nibbles_of(words).reshape(*words.shape, 8)


# -- codes


@red("w4_gemv", profile=("kept", "dequantised"), gate="exact", block="32", offsets="no")
def nibbles_swapped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The high nibble of a byte comes first."""
    codes = slots(words).reshape(len(words), -1, 2).flip(-1).reshape(len(words), -1)
    weight = weight_of(codes, scales)
    return product(weight.to(x.dtype) if profile == "dequantised" else weight, x)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no")
def last_code_first(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The first code is taken from the high bits."""
    return product(weight_of(slots(words).flip(-1).reshape(len(words), -1), scales), x)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no")
def interleaved(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Nibble j holds column 0 2 4 6 1 3 5 7 [j], as AutoAWQ's words do."""
    codes = slots(words)[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(len(words), -1)
    return product(weight_of(codes, scales), x)


@red("w4_gemv", profile="kept", gate="shapes", block="32", offsets="no")
def signed_nibbles(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes read as two's complement, 8 as -8, where they are stored with 8 added."""
    codes = nibbles_of(words)
    return product(weight_of(torch.where(codes > 7, codes - 8, codes + 8), scales), x)


@red("w4_gemv", profile="kept", gate="shapes", block="32", offsets="no")
def words_shifted_as_signed(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The last code of a word is its arithmetic shift by 28, without a mask."""
    codes = slots(words).short()
    codes[..., 7] = (words >> 28).short()
    return product(weight_of(codes.reshape(len(words), -1), scales), x)


# -- zero points


@red("w4_gemv", profile=("kept", "offset"), gate="shapes", block="128")
def zero_point_dropped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """w = q s."""
    return product(weight_of(nibbles_of(words), scales, torch.zeros_like(zeros)), x)


@red("w4_gemv", profile=("kept", "offset"), gate="shapes", block="128")
def stored_zero_plus_one(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    profile: str,
) -> torch.Tensor:
    """z + 1, as for checkpoints that store z - 1."""
    return product(unpacked(words, scales, zeros + 1, profile), x)


@red("w4_gemv", profile="kept", gate="exact", block="128")
def zero_of_zero_is_missing(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """0, which some checkpoints store as 15, is taken for 15."""
    return product(weight_of(nibbles_of(words), scales, torch.where(zeros == 0, 15, zeros)), x)


@red("w4_gemv", profile="kept", gate="exact", block="128")
def zero_point_of_the_block_before(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Zero points are read one block late."""
    return product(weight_of(nibbles_of(words), scales, zeros.roll(1, 1)), x)


@red("w4_gemv", profile="offset", gate="exact", block="128", name="offset_kept")
def exact_zero_points(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """(q - z) s where the offset is rounded."""
    return product(weight_of(nibbles_of(words), scales, zeros), x)


@red("w4_gemv", profile="kept", gate="exact", block="128", name="torch_int4_product")
def rounded_offset(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """torch's int4 product, whose zero points are bf16 offsets, where (q - z) s is kept."""
    return Int4Weight.prepare(words, scales, zeros)(x)


# -- offsets

AFFINE: dict[str, Any] = {"profile": "kept", "block": "32", "offsets": "yes"}


def affine(
    codes: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor, middle: float = 8.0
) -> torch.Tensor:
    """(q - 8) s + o in fp32."""
    wide = codes.reshape(*scales.shape, -1).float() - middle
    return (wide * scales.float()[..., None] + offset.float()[..., None]).reshape(len(codes), -1)


@red("w4_gemv", gate="exact", **AFFINE)
def offset_dropped(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """A symmetric weight."""
    return product(weight_of(nibbles_of(words), scales), x)


@red("w4_gemv", gate="exact", **AFFINE)
def offset_of_the_group_before(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """Offsets are read one group late."""
    return product(affine(nibbles_of(words), scales, offset.roll(1, 1)), x)


@red("w4_gemv", gate="exact", **AFFINE)
def offset_of_the_row_before(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """Every output takes its neighbour's offsets."""
    return product(affine(nibbles_of(words), scales, offset.roll(1, 0)), x)


@red("w4_gemv", gate="exact", **AFFINE)
def offset_taken_for_the_minimum(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """q s + o, as Q4_1 has its minimum."""
    return product(affine(nibbles_of(words), scales, offset, 0.0), x)


@red("w4_gemv", gate="exact", **AFFINE)
def offset_subtracted(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """(q - 8) s - o."""
    return product(affine(nibbles_of(words), scales, -offset), x)


@red("w4_gemv", gate="exact", **AFFINE)
def offset_scaled(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """(q - 8 + o) s, as of a zero point that is a fraction."""
    return product(affine(nibbles_of(words), scales, scales.float() * offset.float()), x)


@red("w4_gemv", gate="exact", **AFFINE)
def nibbles_swapped_under_an_offset(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """The high nibble of a byte comes first."""
    codes = slots(words).reshape(len(words), -1, 2).flip(-1).reshape(len(words), -1)
    return product(affine(codes, scales, offset), x)


@red("w4_gemv", gate="exact", **AFFINE)
def halves_of_a_block_as_nibbles(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """A block's low nibbles are its first 16 codes and the high ones its last, as GGUF stores them."""
    codes = nibbles_of(words).reshape(len(words), -1, 16, 2).swapaxes(-1, -2)
    return product(affine(codes.reshape(len(words), -1), scales, offset), x)


@red("w4_gemv", gate="exact", **AFFINE)
def weight_rounded_under_an_offset(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """The weight is stored in bf16 before the product."""
    return product(affine(nibbles_of(words), scales, offset).bfloat16(), x)


@red("w4_gemv", gate="exact", **AFFINE)
def tail_lost_under_an_offset(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """The last group's offset is left out."""
    held = offset.clone()
    held[:, -1] = 0
    return product(affine(nibbles_of(words), scales, held), x)


@green("w4_gemv", **AFFINE)
def minimum_in_fp32(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """q s + (o - 8 s)."""
    low = offset.float() - 8.0 * scales.float()
    return product(affine(nibbles_of(words), scales, low, 0.0), x)


# -- groups


@red("w4_gemv", profile="kept", gate="exact", block="128")
def block_edge_shifted(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Input k takes the scale of block (k + 1) // 128."""
    k = torch.arange(x.shape[1])
    at = ((k + 1) // 128).clamp(max=scales.shape[1] - 1)
    weight = (nibbles_of(words).float() - zeros.float()[:, at]) * scales.float()[:, at]
    return product(weight, x)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no")
def group_of_a_wide_tile(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Tiles of 16 inputs, half a group: the group of tile t is t * (16 // 32), which is 0."""
    at = torch.arange(x.shape[1]) // 16 * (16 // 32)
    return product((nibbles_of(words).float() - 8) * scales.float()[:, at], x)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no")
def one_scale_for_a_wider_group(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Groups of 64 where there are groups of 32."""
    wider = scales.repeat_interleave(2, 1)[:, ::4].repeat_interleave(2, 1)
    return product(weight_of(nibbles_of(words), wider[:, : scales.shape[1]]), x)


@red("w4_gemv", profile="kept", gate="shapes", block="32", offsets="no")
def scale_of_the_row_before(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Every output takes its neighbour's scales."""
    return product(weight_of(nibbles_of(words), scales.roll(1, 0)), x)


# -- the sum


@red("w4_gemv", profile=("kept", "dequantised"), gate="exact", block="32", offsets="no")
def tail_lost(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """A loop over whole tiles of 256 inputs, and at least one, leaves the last ones out."""
    weight = unpacked(words, scales, None, profile)
    weight[:, max(256, x.shape[1] // 256 * 256) - 1 :] = 0
    return product(weight, x)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no")
def bf16_partial_sums(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Two halves of the inputs, each sum rounded to bf16 before they are added."""
    weight, half = weight_of(nibbles_of(words), scales), x.shape[1] // 2
    return product(weight[:, :half], x[:, :half]) + product(weight[:, half:], x[:, half:])


@red("w4_gemv", profile="kept", gate="exact", block="128")
def fp16_accumulator(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Sums of 32 products are carried on in fp16."""
    weight = weight_of(nibbles_of(words), scales, zeros)
    total = torch.zeros(len(x), len(words), dtype=torch.float16)
    for part, of in zip(x.float().split(32, 1), weight.split(32, 1), strict=True):
        total = (total.float() + part @ of.t()).half()
    return total.to(x.dtype)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no", name="weight_rounded")
def dequantised_weight(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight is rounded to bf16 where it is kept."""
    return in_chunks(x, words, scales, None, "dequantised")


@red("w4_gemv", profile="dequantised", gate="exact", name="weight_kept")
def kept_weight(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight is kept in fp32 where it is rounded to bf16."""
    return in_chunks(x, words, scales, None, "kept")


# -- legal variants


@green("w4_gemv", profile=("kept", "dequantised", "offset"))
def one_input_after_the_other(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """A running sum over k."""
    weight = unpacked(words, scales, zeros, profile, offset)
    total = torch.zeros(len(x), len(words))
    for k in range(x.shape[1]):
        total = torch.addcmul(total, x[:, k, None].float(), weight[:, k])
    return total.to(x.dtype)


@green("w4_gemv", profile=("kept", "dequantised", "offset"))
def split_over_inputs(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """Four fp32 partial sums of interleaved inputs."""
    weight = unpacked(words, scales, zeros, profile, offset)
    parts = [x[:, i::4].float() @ weight[:, i::4].t() for i in range(4)]
    return ((parts[0] + parts[2]) + (parts[3] + parts[1])).to(x.dtype)


@green("w4_gemv", profile=("kept", "dequantised", "offset"))
def in_float64(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """The sum is kept wider, and given to fp32 before it is rounded."""
    weight = unpacked(words, scales, zeros, profile, offset)
    return (x.double() @ weight.double().t()).float().to(x.dtype)
