"""Weights of GGUF blocks: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading
from contract.references.bit_streams import fp16_at

#: Bytes of a block of 32 values.
BLOCK_BYTES = {"q4_1": 20, "q8_0": 34}


def dequant_gguf(r: Reading, blocks: Quantity, kind: str) -> Quantity:
    """w = d q + m of blocks of 32 values, each with its own d and m.

        q4_1: 20 bytes: d and m (fp16, low byte first), then 16 bytes: value j in the low half of byte j, value j + 16 in
              its high half; q in 0 .. 15
        q8_0: 34 bytes: d (fp16), then 32 int8; m = 0

    Args:
        blocks: (rows, bytes) uint8: whole blocks, one after the other.
        kind: 'q4_1' or 'q8_0'.

    Rounding points:
        out: fp32, or bf16 under the profile once. d q is exact (at most 19 bits).

    Freedoms: d q + m in fp32 or wider, fused or not.

    Specials: as the operations of d and m; 0 times an infinite d is NaN.

    Source: ggml, ggml-quants.c (dequantize_row_q4_1, dequantize_row_q8_0).
    """
    rows = blocks.shape[0]
    b = r.integers(blocks).reshape(rows, -1, BLOCK_BYTES[kind])
    d = r.exactly(fp16_at(b, 0))
    if kind == "q8_0":
        byte = b[..., 2:]
        values = d * r.exactly(np.where(byte < 128, byte, byte - 256))
    else:
        byte = b[..., 4:]
        q = r.exactly(np.concatenate([byte % 16, byte // 16], -1))
        values = d * q + r.exactly(fp16_at(b, 2))
    return r.round("out", values.reshape(rows, -1))
