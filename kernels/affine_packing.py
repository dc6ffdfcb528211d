"""Affine-quantised weights as MLX stores them: packing, unpacking, and what is refused when a tensor is loaded.

A row of codes is one little-endian bit stream in 32-bit words, for all widths: code i takes bits i*b .. i*b + b - 1. Any
32 codes fill `bits` whole words; codes of 3, 5 and 6 bits cross from one word to the next inside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

WIDTHS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
#: The parameter of the affine contracts; 4 bits are the default.
BITS = ("4", "2", "3", "5", "6", "8")


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes (..., 32 w / bits) int32 of words (..., w) int32."""
    mask = (1 << bits) - 1
    if 32 % bits == 0:
        # no code crosses a word; the mask takes away what the shift draws in from the sign
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        return ((words[..., None] >> shifts) & mask).flatten(-2)
    first = torch.arange(0, 32 * bits, bits)
    shift = first % 32
    # the bits that the first word still has; the rest is in the low bits of the next
    held = (32 - shift).clamp(max=bits)
    blocks = words.unflatten(-1, (-1, bits))
    low = (blocks[..., first // 32] >> shift.int()) & ((1 << held) - 1).int()
    rest = blocks[..., (first // 32 + 1).clamp(max=bits - 1)] & ((1 << (bits - held)) - 1).int()
    result: torch.Tensor = (low | (rest << held.int())).flatten(-2)
    return result


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Words (..., n bits / 32) int32 of integer codes (..., n).

    Raises:
        ValueError: an unknown width, a code that it does not hold, or a row of codes that fills no whole words.
    """
    _check_width(bits)
    n = codes.shape[-1]
    if n % 32:
        raise ValueError(f"{n} codes a row; packed rows hold a multiple of 32")
    # 2^8 is no uint8
    codes = codes.long()
    wrong = (codes < 0) | (codes >= 1 << bits)
    if bool(wrong.any()):
        place = [int(i) for i in wrong.nonzero()[0]]
        raise ValueError(
            f"code {int(codes[tuple(place)])} at {place}; {bits}-bit codes are 0 to {(1 << bits) - 1}"
        )
    stream = (codes[..., None] >> torch.arange(bits)) & 1
    words = (stream.flatten(-2).unflatten(-1, (-1, 32)) << torch.arange(32)).sum(-1)
    # from 2^31 on the word is negative as an int32
    result: torch.Tensor = (words - ((words >> 31) << 32)).int()
    return result


def group_size(columns: int, groups: int) -> int:
    """Neighbours that share a scale.

    Raises:
        ValueError: it is none of 32, 64 and 128.
    """
    if groups < 1 or columns % groups or columns // groups not in GROUPS:
        raise ValueError(
            f"{columns} columns in {groups} groups; groups are of {', '.join(map(str, GROUPS))}"
        )
    return columns // groups


def check_affine(words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int) -> int:
    """The group size of a weight that is loaded.

    Raises:
        ValueError: a width or group size that the format does not have, shapes that disagree, or a scale or bias that
            is not finite; names the first row and group.
    """
    _check_width(bits)
    if words.dtype != torch.int32:
        raise ValueError(f"words are {words.dtype}; view uint32 words as int32")
    if words.shape[-1] * 32 % bits or scales.shape != biases.shape:
        raise ValueError(
            f"words {tuple(words.shape)}, scales {tuple(scales.shape)}, biases {tuple(biases.shape)}:"
            f" no weight of {bits}-bit codes"
        )
    size = group_size(words.shape[-1] * 32 // bits, scales.shape[-1])
    for name, values in (("scale", scales), ("bias", biases)):
        wrong = ~values.isfinite()
        if bool(wrong.any()):
            row, group = (int(i) for i in wrong.nonzero()[0])
            raise ValueError(f"{name} of row {row}, group {group} is {float(values[row, group])}")
    return size


def _check_width(bits: int) -> None:
    if bits not in WIDTHS:
        raise ValueError(f"{bits}-bit codes; widths are {', '.join(map(str, WIDTHS))}")


def affine_values(
    codes: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, each_op: bool = False
) -> torch.Tensor:
    """q s + b in fp32 of codes (rows, d), with q s rounded to the scales' format first where `each_op`."""
    size = group_size(codes.shape[-1], scales.shape[-1])
    product = codes.unflatten(-1, (-1, size)).float() * scales[..., None].float()
    if each_op:
        product = product.to(scales.dtype).float()
    result: torch.Tensor = (product + biases[..., None].float()).flatten(-2)
    return result


# -- samplers and sizes of the affine contracts


def any_words(rng: Any, shape: tuple[int, ...]) -> Any:
    """Words of uniform bits: codes of every width are uniform, too."""
    return rng.integers(-(2**31), 2**31, shape).astype(np.float64)


def affine_scales(rng: Any, shape: tuple[int, ...]) -> Any:
    """Scales as trained weights have them; the quantiser makes about half of them negative."""
    return rng.uniform(0.002, 0.02, shape) * rng.choice((-1.0, 1.0), shape)


def affine_biases(rng: Any, shape: tuple[int, ...]) -> Any:
    """The smallest or the largest weight of a group."""
    return rng.uniform(0.03, 0.1, shape) * rng.choice((-1.0, 1.0), shape)


def words_of(columns: str) -> Any:
    """Size of the dim `words` from the dim of the columns."""
    return lambda s, p: s[columns] * int(p["bits"]) // 32


def columns_of() -> Any:
    """Size of the columns from the dim `words`."""
    return lambda s, p: s["words"] * 32 // int(p["bits"])


def group_rule(columns: str) -> Mapping[str, Any]:
    """The rule on the groups of a dim."""
    return {
        "groups are of 32, 64 or 128 columns": lambda s: any(
            s[columns] == g * s["groups"] for g in GROUPS
        )
    }


def grouped(columns: str, group: int, **shape: int) -> dict[str, int]:
    """A shape with the number of its groups."""
    return {**shape, "groups": shape[columns] // group}
