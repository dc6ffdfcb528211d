"""Affine-quantised weights as bf16 numbers: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.bit_streams import bit_fields


def dequant_affine(
    r: Reading, words: Quantity, scales: Quantity, biases: Quantity, bits: str
) -> Quantity:
    """out[n, j] = q[n, j] s[n, j // g] + b[n, j // g], g = d / groups.

    Args:
        words: (rows, d bits / 32) int32: each row a little-endian stream of codes, code j in bits j*b .. j*b + b - 1.
        scales, biases: (rows, groups) bf16, of groups of 32, 64 or 128 neighbours.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Rounding points:
        product: q s to bf16 (each_op); else it is exact: at most 16 bits.
        out: bf16.

    Freedoms: q s + b in fp32 or wider, fused or not.

    Source: MLX, mlx/ops.cpp (affine_dequantize).
    """
    codes = bit_fields(r.integers(words), int(bits))
    rows, groups = scales.shape
    q = r.exactly(codes.reshape(rows, groups, -1))
    product = r.round("product", q * scales[..., None])
    return r.round("out", (product + biases[..., None]).reshape(rows, -1))
