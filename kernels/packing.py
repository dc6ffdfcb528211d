"""Codes of 2 to 8 bits as bit streams in 32-bit words, their zero points and scales: packed, unpacked, checked.

A row is one little-endian stream: code i takes bits i b .. i b + b - 1 of it, crossing words where b does not divide 32.
compressed-tensors stores a signed code q as q + 2^(b - 1), weights along the inputs of a layer and zero points along
its outputs (format pack-quantized); MLX lays its codes out in the same way.

What is wrong with a weight is said here, where it is loaded: kernels that read it trust it.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

WORD = 32
#: The columns in which AutoAWQ's words hold their nibbles, the lowest first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack(codes: Any, bits: int) -> Any:
    """(..., n) codes 0 .. 2^bits - 1 -> (..., ceil(n bits / 32)) int32 words; the last word is filled with zeros.

    Raises:
        ValueError: a width that is not 2 to 8, or a code that does not have that many bits.
    """
    q = checked_codes(codes, bits)
    n, (values, words) = q.shape[-1], _period(bits)
    q = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, -n % values)]).astype(np.uint64)
    q = q.reshape(*q.shape[:-1], -1, values)
    packed = np.zeros((*q.shape[:-1], words + 1), np.uint64)
    for i in range(values):
        word, shift = divmod(i * bits, WORD)
        spread = q[..., i] << np.uint64(shift)
        packed[..., word] |= spread & np.uint64(0xFFFFFFFF)
        # what does not fit goes on in the next word; the last code of a period ends with its word
        packed[..., word + 1] |= spread >> np.uint64(WORD)
    stream = packed[..., :words].reshape(*q.shape[:-2], -1)
    return stream[..., : _words(n, bits)].astype(np.uint32).view(np.int32)


def unpack(words: Any, bits: int, count: int) -> Any:
    """(..., w) int32 or uint32 words -> (..., count) uint8 codes.

    Raises:
        ValueError: a width that is not 2 to 8, or another number of words than `count` codes have.
    """
    values, per = _period(bits)
    w = np.ascontiguousarray(words).view(np.uint32).astype(np.uint64)
    if w.shape[-1] != _words(count, bits):
        raise ValueError(
            f"{w.shape[-1]} words for {count} codes of {bits} bits; they take {_words(count, bits)} words"
        )
    w = np.pad(w, [(0, 0)] * (w.ndim - 1) + [(0, -w.shape[-1] % per)])
    w = np.pad(w.reshape(*w.shape[:-1], -1, per), [(0, 0)] * w.ndim + [(0, 1)])
    codes = np.empty((*w.shape[:-1], values), np.uint8)
    for i in range(values):
        word, shift = divmod(i * bits, WORD)
        both = w[..., word] | w[..., word + 1] << np.uint64(WORD)
        codes[..., i] = (both >> np.uint64(shift)) & np.uint64((1 << bits) - 1)
    return codes.reshape(*codes.shape[:-2], -1)[..., :count]


def pack_signed(codes: Any, bits: int) -> Any:
    """Codes -2^(bits - 1) .. 2^(bits - 1) - 1 as compressed-tensors packs them: with 2^(bits - 1) added."""
    return pack(np.asarray(codes, np.int64) + (1 << (bits - 1)), bits)


def unpack_signed(words: Any, bits: int, count: int) -> Any:
    """The signed codes of a compressed-tensors row, int8."""
    return (unpack(words, bits, count).astype(np.int16) - (1 << (bits - 1))).astype(np.int8)


def pack_zero_points(zeros: Any, bits: int) -> Any:
    """(out, groups) zero points 0 .. 2^bits - 1 -> (ceil(out bits / 32), groups): packed along the outputs."""
    return np.ascontiguousarray(pack(np.asarray(zeros).T, bits).T)


def unpack_zero_points(words: Any, bits: int, out: int) -> Any:
    """(ceil(out bits / 32), groups) words -> (out, groups) uint8 zero points, in the codes' own numbering."""
    return np.ascontiguousarray(unpack(np.asarray(words).T, bits, out).T)


def gptq_zero_points(stored: Any, bits: int = 4) -> Any:
    """The zero points of a GPTQ checkpoint, which stores z - 1 in `bits` bits: 0 is stored as 2^bits - 1."""
    return ((np.asarray(stored, np.int64) + 1) & ((1 << bits) - 1)).astype(np.uint8)


def in_column_order(nibbles: Any, order: tuple[int, ...] = AWQ_ORDER) -> Any:
    """(..., 8 w) codes in the order of their words -> in the order of the columns; nibble j is column order[j]."""
    places = np.argsort(order)
    words = np.asarray(nibbles).reshape(*np.shape(nibbles)[:-1], -1, len(order))
    return words[..., places].reshape(np.shape(nibbles))


def by_group(group_of: Any, group: int) -> Any:
    """The order of inputs in which each group's stand together, for checkpoints that name every input's group.

    Codes and activations taken in that order are a weight like any other: the group of place i is i // group.

    Raises:
        ValueError: a group that has not `group` inputs, as of a slice of a layer, whose scales are those of the whole.
    """
    groups, counts = np.unique(group_of, return_counts=True)
    wrong = np.flatnonzero(counts != group)
    if wrong.size or not np.array_equal(groups, np.arange(len(groups))):
        at = int(wrong[0]) if wrong.size else 0
        raise ValueError(
            f"group {int(groups[at])} has {int(counts[at])} inputs, a group has {group};"
            " order the whole layer before it is cut"
        )
    return np.argsort(group_of, kind="stable")


def checked_codes(codes: Any, bits: int) -> Any:
    """Codes that have `bits` bits.

    Raises:
        ValueError: the width, or the first code outside it with its index.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"{bits} bits; packed codes have 2 to 8")
    q = np.asarray(codes)
    wrong = np.argwhere((q < 0) | (q >= 1 << bits))
    if wrong.size:
        index = tuple(int(i) for i in wrong[0])
        raise ValueError(
            f"code {int(q[index])} at {list(index)}; codes of {bits} bits are 0 to {(1 << bits) - 1}"
        )
    return q


def checked_scales(
    scales: torch.Tensor, inputs: int, block: int, what: str = "scale"
) -> torch.Tensor:
    """(out, inputs / block) finite scales, or offsets.

    Raises:
        ValueError: inputs that are no whole number of blocks, another number of scales, a NaN or an infinity.
    """
    if inputs % block:
        raise ValueError(f"{inputs} inputs are no whole number of blocks of {block}")
    if scales.shape[-1] != inputs // block:
        raise ValueError(
            f"{scales.shape[-1]} {what}s a row for {inputs} inputs in blocks of {block}; there are {inputs // block}"
        )
    finite = torch.isfinite(scales)
    if not finite.all():
        index = (~finite).nonzero()[0].tolist()
        raise ValueError(f"{what} {float(scales[tuple(index)])} at {index}; it is a finite number")
    return scales


def nibbles_of(words: torch.Tensor) -> torch.Tensor:
    """(n, w) int32 words -> (n, 8 w) uint8 codes, the first in the low bits of its word."""
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), -1).reshape(words.shape[0], -1)


def _period(bits: int) -> tuple[int, int]:
    """The fewest codes that fill whole words, and how many words."""
    if not 2 <= bits <= 8:
        raise ValueError(f"{bits} bits; packed codes have 2 to 8")
    common = gcd(WORD, bits)
    return WORD // common, bits // common


def _words(count: int, bits: int) -> int:
    return -(-count * bits // WORD)
