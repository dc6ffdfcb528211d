"""Norm and rotation of queries and keys: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.rope import rotated


def qk_rows(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity | None,
    q_weight: Quantity,
    k_weight: Quantity,
    cos: Quantity,
    sin: Quantity,
    eps: float,
    gain: str,
    v_norm: str,
) -> dict[str, Quantity]:
    """Every head of q and k is normed, gained and turned; every head of v is normed, no more.

    norm(a) = a / sqrt(mean(a^2) + eps) along a head. Pairs are (i, i + half), as in rope with pairing=halves; dims from
    2 half on are normed and gained only.

    Args:
        q: (tokens, heads, d) bf16; k: (tokens, kv_heads, d); v: the same as k, absent with v_norm=no. Where a layer has
            one projection for keys and values, v is that row as projected, before k's norm.
        q_weight, k_weight: (d,) bf16, shared by the heads.
        cos, sin: (tokens, half), 2 half <= d: bf16 under two_step and each_op, fp32 else.
        eps: added to the mean squares, in units of the squares; positive.
        gain: the weight enters as 'w' or '1+w' (formed in fp32).

    Rounding points:
        normed: before the gain (two_step).
        gained: the normed row that is turned (all but once).
        cos_product, sin_product: as in rope (two_step, each_op).
        out: the results, always.

    Freedoms: the mean squares in any order; rsqrt within 2 fp32 ulps; one product of a rotation may be fused.

    Specials: as rms_norm, then as rope.

    Source: Henry et al., Query-Key Normalization for Transformers, 2020; Gemma 3 Technical Report, 2025, section 2.
    """
    results = {}
    width = 2 * cos.shape[-1]
    for name, x, weight in (("q_out", q, q_weight), ("k_out", k, k_weight)):
        normed = r.round("normed", _normed(r, x, eps))
        row = r.round("gained", normed * (1.0 + weight if gain == "1+w" else weight))
        turned = rotated(r, row[..., :width], cos, sin, "halves")
        if width < x.shape[-1]:
            turned = r.concat([turned, row[..., width:]])
        results[name] = r.round("out", turned)
    if v is not None:
        results["v_out"] = r.round("out", _normed(r, v, eps))
    return results


def _normed(r: Reading, x: Quantity, eps: float) -> Quantity:
    return x * r.rsqrt(r.mean(r.square(x), name="mean") + eps)
