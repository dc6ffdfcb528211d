"""A learned table of positions resampled to a grid of patches: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def pos_resample(
    r: Reading,
    table: Quantity,
    taps: Quantity,
    weights: Quantity,
    hidden: Quantity | None,
    adds: str,
) -> Quantity:
    """Each row's four entries of the table, weighted and summed: p = sum of w[j] table[t[j]].

    Taps and weights are a function of the grid alone and are made beforehand (`bilinear_taps`).

    Args:
        table: (entries, d) bf16, a square of positions, row by row.
        taps: (rows, four) int32 indices into it.
        weights: (rows, four) fp32, what each tap counts for.
        hidden: (rows, d) bf16, the patches' own rows; absent with adds=no.
        adds: 'yes', the positions are added to `hidden`; 'no', they are the result.

    Rounding points:
        position: the sum of the four products, before it is added (each, with adds=yes).
        out: the result.

    Freedoms: the four products in any order, fused into the sum or not.

    Specials: a tap counts with a weight of 0 as well: 0 times an infinity or NaN is NaN.

    Source: transformers, modeling_qwen3_vl.py, Qwen3VLVisionModel.forward.
    """
    terms = r.take(table, r.integers(taps)) * weights.reshape(*weights.shape, 1)
    total = r.sum(terms, axis=1).reshape(taps.shape[0], table.shape[1])
    if hidden is None:
        return r.round("out", total)
    return r.round("out", hidden + r.round("position", total))
