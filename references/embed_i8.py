"""Embedding rows from an int8 table with one scale per row: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def embed_i8(r: Reading, ids: Quantity, codes: Quantity, row_scales: Quantity) -> Quantity:
    """out[r, j] = codes[id, j] * row_scales[id], id = ids[r].

    Args:
        ids: (rows,) int32, 0 <= id < vocab.
        codes: (vocab, d) int8.
        row_scales: (vocab,) fp32, or fp16 under the profile fp16_scales.

    Rounding points:
        out: bf16, once.

    Freedoms: the product of a code and an fp32 scale in fp32 or wider (of an fp16 scale it is exact).

    Specials: code 0 is a zero of the scale's sign.
    """
    chosen = r.integers(ids)
    return r.round("out", r.take(codes, chosen) * r.take(row_scales, chosen)[:, None])
