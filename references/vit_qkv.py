"""Queries, keys and values of a vision tower, normed and turned by position: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def vit_qkv(
    r: Reading,
    q: Quantity,
    k: Quantity,
    v: Quantity,
    cos: Quantity,
    sin: Quantity,
    q_weight: Quantity,
    k_weight: Quantity,
    eps: float,
) -> dict[str, Quantity]:
    """Each head's norm, with a gain for q and k and none for v; then q and k are turned, half of a head by each axis.

        n = x / sqrt(mean(x^2) + eps) w,  y[i] = n[i] C[i] - n[i + e] S[i],  y[i + e] = n[i + e] C[i + e] + n[i] S[i + e]

    within each half of the head, e = d / 4: the first half turns by the column of its patch, the second by its row.

    Args:
        q, k, v: (rows, heads, d) bf16; a row is one patch.
        cos, sin: (rows, d) bf16 tables at the patch's position: e values of the column twice, e of the row twice.
        q_weight, k_weight: (d,) bf16.
        eps: added to the mean squares; positive.

    Rounding points:
        normed: q and k after their gain.
        direct: n C (each_step only).
        crossed: the other half's n times S (each_step only).
        out: q, k and v as they are stored.

    Freedoms: the mean square in any order; rsqrt within 2 fp32 ulps.

    Specials: as rms_norm; a table's 0 does not hide an infinity or NaN of the other half.

    Source: transformers, modeling_gemma4.py, Gemma4VisionAttention and apply_multidimensional_rope.
    """
    found = {}
    for name, x, weight in (("q", q, q_weight), ("k", k, k_weight)):
        normed = r.round("normed", x * inverse_rms(r, x, eps) * weight)
        found[f"{name}_out"] = turned(r, normed, cos, sin)
    found["v_out"] = r.round("out", v * inverse_rms(r, v, eps))
    return found


def inverse_rms(r: Reading, x: Quantity, eps: float) -> Quantity:
    """1 / sqrt(mean(x^2) + eps) of each head."""
    return r.rsqrt(r.mean(r.square(x), name="mean") + eps)


def turned(r: Reading, n: Quantity, cos: Quantity, sin: Quantity) -> Quantity:
    """The pairs (i, i + d / 4) of each half of a head, turned by their angle."""
    rows, d = cos.shape
    e = d // 4
    column, row = n[..., : 2 * e], n[..., 2 * e :]
    crossed = r.concat([-column[..., e:], column[..., :e], -row[..., e:], row[..., :e]])
    direct = r.round("direct", n * cos.reshape(rows, 1, d))
    return r.round("out", direct + r.round("crossed", crossed * sin.reshape(rows, 1, d)))
