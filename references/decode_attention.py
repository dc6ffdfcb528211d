"""Attention of one query a sequence over its own cache: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading
from contract.references.attention import GAUGES, known


def decode_attention(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    length: Quantity,
    scale: float,
    gauge: str,
    sums: str,
    empty: str,
) -> dict[str, Quantity]:
    """out = sum_j w_j v_j over the used slots, w = softmax(scale q.k), for every sequence and head.

    Query head h reads key head h / (heads / kv).

    Args:
        q: (rows, heads, d) bf16, or fp32 under float32; one query a sequence.
        k, v: (rows, slots, kv, d) of the same format, its cache.
        length: (rows,) int32, used slots: the first ones. What the others hold never matters, NaN included.
        scale: multiplies the scores.

    Rounding points:
        p: exp(s - max) before it meets v.
        out: always.
        lse: the natural log-sum-exp of the used scores, a stage (for merging splits).

    Options:
        gauge: the maximum of a weight: the running one of chunks of 256 slots in order, or the row's.
        sums: whether the sum of exponentials takes them rounded.
        empty: a cache without a used slot gives zeros (and -inf), NaN, or the mean of v.

    Freedoms: every sum in any order; exp and log within 2 fp32 ulps; chunks are rescaled and merged as many times as
    there are chunks.

    Specials: NaN in a used key makes its sequence and head NaN.

    Source: Dao et al., FlashAttention, 2022, algorithm 1; Milakov and Gimelshein, Online normalizer calculation for
    softmax, 2018.
    """
    used = np.arange(k.shape[1]) < r.integers(length)[:, None]
    shared = np.arange(q.shape[1]) // (q.shape[1] // k.shape[2])
    keys = r.take(k.swapaxes(1, 2), shared, axis=1)
    values = r.where(known(r, used[:, :, None, None]), v, 0.0)
    values = r.take(values.swapaxes(1, 2), shared, axis=1)
    query = q.reshape(*q.shape[:2], 1, q.shape[2])
    scores = r.dot(query, keys.swapaxes(2, 3), name="scores") * scale
    out, lse = r.softmax_av(
        scores,
        values,
        mask=used[:, None, None, :],
        point="p",
        gauge=GAUGES[gauge],
        sums=sums,
        empty=empty,
    )
    return {
        "out": r.round("out", out.reshape(*q.shape)),
        "lse": r.round("lse", lse.reshape(*q.shape[:2])),
    }
