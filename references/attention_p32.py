"""Attention whose weights keep 16 bits as two bf16 halves: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.orders import running
from contract.readings.base import Quantity, Reading
from contract.references.attention import live_keys

#: Chunks of 256 keys, each with a maximum of its own.
CHUNKS = running(256, 256)


def attention_p32(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    first: Quantity,
    last: Quantity,
    scale: float,
) -> dict[str, Quantity]:
    """out = sum_j (high_j + low_j) v_j / sum_j e_j over the keys first .. last, e_j = exp(s_j - m), s = scale q.k.

    m is the largest live score of the key's chunk of 256; the chunks' parts are merged in order.

    high_j is e_j in bf16, low_j in bf16 what that left over: e_j to 16 bits, for matrix units that multiply bf16, where
    another device keeps weights in fp32. Query head h reads key head h / (heads / kv).

    Args:
        q: (queries, heads, d) bf16.
        k, v: (keys, kv, d) bf16, finite.
        first, last: (queries,) int32, the keys that a query sees: its window's first one, its own, or its image's last.
        scale: multiplies the scores.

    Rounding points:
        high: exp(s - m).
        low: exp(s - m) - high.
        out: always.
        lse: the natural log-sum-exp of the live scores, a stage.

    Freedoms: every sum in any order; exp within 2 fp32 ulps; a part is rescaled at each merge, one less than there are
    chunks.

    Specials: a row without a live key is zeros, its log-sum-exp -inf; a dead key has weight exactly 0.

    Source: Dao et al., FlashAttention, 2022, algorithm 1; Henry et al., Leveraging the bfloat16 Artificial Intelligence
    Datatype For Higher-Precision Computations, 2019, section II (halves).
    """
    live = live_keys(r, k.shape[0], first, last, None, None, None, "causal")
    shared = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    keys, values = (r.take(x.swapaxes(0, 1), shared) for x in (k, v))
    scores = r.dot(q.swapaxes(0, 1), keys.swapaxes(1, 2), name="scores") * scale
    merges = (k.shape[0] - 1) // CHUNKS.block
    out, lse = r.softmax_av(
        scores, values, mask=live, point="high", low="low", merges=merges, gauge=CHUNKS
    )
    by_query = lse.reshape(*lse.shape[:2]).swapaxes(0, 1)
    return {"out": r.round("out", out.swapaxes(0, 1)), "lse": r.round("lse", by_query)}
