"""Embedding rows from a bf16 table: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def embed(
    r: Reading, ids: Quantity, table: Quantity, scale: Quantity | None, scaled: str
) -> Quantity:
    """out[r] = table[ids[r]] * scale, or the row itself.

    Args:
        ids: (rows,) int32, 0 <= id < vocab.
        table: (vocab, d) bf16.
        scale: () fp32, the root of the width; absent with scaled=no.
        scaled: whether the model multiplies its embeddings: Gemma does, Llama and Qwen do not.

    Rounding points:
        scale: the factor to bf16, before it multiplies (scaled=yes).
        out: bf16.

    Specials: with scaled=no bits are moved: subnormals and the sign of a zero are kept.

    Source: transformers, Gemma3TextScaledWordEmbedding (embed_scale is cast to the weight's dtype).
    """
    row = r.take(table, r.integers(ids))
    if scale is not None:
        row = row * r.round("scale", scale)
    return r.round("out", row)
