"""Attention with int8 queries and keys, and softmax and values in fp16: what the kernel must compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from contract.readings.base import Quantity, Reading
from contract.references.attention import live_keys, normalised


def sdpa_i8qk_fp16pv(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    q_scale: Quantity,
    k_scale: Quantity,
    position: Quantity,
    prefix: Quantity,
    scale: float,
) -> Quantity:
    """out = sum_j p_j v_j over the live keys, p = softmax(s_q s_k scale (sum_c q_c k_c)), for every query and head.

    A key is live at or before the query's own, and wherever it lies in the prefix. Query head h reads key head
    h / (heads / kv).

    Args:
        q: (queries, heads, d) int8 codes, all of -128 .. 127.
        k: (keys, kv, d) int8 codes.
        v: (keys, kv, d) fp16, finite.
        q_scale, k_scale: () fp32, values of one step of q and of k.
        position: (queries,) int32, the query's own key.
        prefix: (queries,) int32, keys before it are seen by all.
        scale: multiplies the scores, d^-1/2.

    Rounding points:
        scores: (sum_c q_c k_c) times s_q s_k scale, which is formed first.
        shifted, exp, total: the score less the row's maximum, its exponential, and their sum (each_op).
        p: the weights, divided by their sum.
        out: the result.

    Freedoms: the sum of codes is an int32 one, which is exact below 2^31; sums of weights and of products with v are fp32
    ones in any order; exp within 2 fp32 ulps; a weight is multiplied by the reciprocal of the sum, or divided by it.

    Specials: fp16's subnormals are kept: over a thousand keys many weights are such. A score beyond 65504 is an infinity
    and makes its row NaN.

    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference,
    2018, section 2.2 (codes, with zero points of 0); Beyer et al., PaliGemma, 2024, section 3.2 (prefix-LM mask).
    """
    live = live_keys(r, k.shape[0], None, position, prefix, None, None, "prefix")
    shared = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    codes = r.integers(k).transpose(1, 2, 0)[shared]
    total = r.exactly(integer_products(r.integers(q).transpose(1, 0, 2), codes))
    scores = r.round("scores", r.converted(total) * (q_scale * k_scale * scale))
    values = r.take(v.swapaxes(0, 1), shared)
    # no row is empty: a query sees its own key
    out = normalised(r, scores, values, live, "mean", ("shifted", "exp", "total"))
    return r.round("out", out.swapaxes(0, 1))


def integer_products(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """a @ b of codes: float64 products and sums are exact below 2^53, and faster than those of int64."""
    total: NDArray[np.float64] = a.astype(np.float64) @ b.astype(np.float64)
    return total.astype(np.int64)
