"""Embedding rows from an affine-quantised table: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.bit_streams import bit_fields


def embed_affine(
    r: Reading,
    ids: Quantity,
    words: Quantity,
    scales: Quantity,
    biases: Quantity,
    scale: Quantity,
    bits: str,
) -> Quantity:
    """out[r, j] = (q[id, j] s[id, j // g] + b[id, j // g]) * scale, id = ids[r], g = d / groups.

    Args:
        ids: (rows,) int32, 0 <= id < vocab.
        words: (vocab, d bits / 32) int32: each row a little-endian stream of codes, code j in bits j*b .. j*b + b - 1.
        scales, biases: (vocab, groups) bf16, of groups of 32, 64 or 128 neighbours.
        scale: () fp32, what the model multiplies embeddings with (the root of the width); 1 where it does not.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Rounding points:
        product: q s to bf16 (each_op); else it is exact: at most 16 bits.
        row: q s + b to bf16.
        scale: the factor to bf16.
        out: bf16.

    Freedoms: q s + b in fp32 or wider, fused or not.

    Specials: as the operations; a row of another id moves nothing.

    Source: MLX, mlx/ops.cpp (affine dequantisation) and Gemma's embedder, which rounds its factor first.
    """
    chosen = r.integers(ids)
    codes = bit_fields(r.integers(r.take(words, chosen)), int(bits))
    s, b = r.take(scales, chosen), r.take(biases, chosen)
    rows, groups = s.shape
    q = r.exactly(codes.reshape(rows, groups, -1))
    product = r.round("product", q * s[..., None])
    row = r.round("row", product + b[..., None]).reshape(rows, -1)
    return r.round("out", row * r.round("scale", scale))
