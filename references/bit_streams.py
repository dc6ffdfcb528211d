"""Codes in packed words and blocks, in NumPy's integers: what references read from packed operands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from contract import formats


def bit_fields(words: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Codes of a little-endian bit stream along the last axis: code i is bits i*b .. i*b + b - 1 of the 32-bit words.

    Bit by bit, for all widths the same way: no shift reaches across two words.
    """
    stream = np.unpackbits(words.astype("<i4").view(np.uint8), axis=-1, bitorder="little")
    fields = stream.reshape(*words.shape[:-1], -1, bits)
    return np.asarray(fields @ (1 << np.arange(bits, dtype=np.int64)))


def fp16_at(blocks: NDArray[np.int64], at: int) -> NDArray[np.float64]:
    """The little-endian fp16 number in bytes `at`, `at + 1` of the last axis (kept with size 1)."""
    low, high = blocks[..., at : at + 1], blocks[..., at + 1 : at + 2]
    return formats.decode((low + 256 * high).astype(np.uint16), formats.get("fp16"))
