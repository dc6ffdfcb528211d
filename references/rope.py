"""Rotary embedding: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def rope(r: Reading, x: Quantity, cos: Quantity, sin: Quantity, pairing: str) -> Quantity:
    """Each pair (a, b) of the first 2 half dims of a head turns by its angle: (a cos - b sin, b cos + a sin).

    Args:
        x: (tokens, heads, d) bf16, or fp32 under the profile float32; all heads of a token turn alike.
        cos, sin: (tokens, half), one entry a pair, 2 half <= d: bf16 under each_op, fp32 else. Dims from 2 half on
            pass bit for bit.
        pairing: which dims are pair i: 'halves' (i, i + half), 'interleaved' (2 i, 2 i + 1), or 'by_axis', halves
            within each half: (i, i + half / 2), then the same from dim half on (two axes of an image).

    Rounding points:
        cos_product: a cos and b cos (each_op only).
        sin_product: b sin and a sin (each_op only).
        out: the result.

    Freedoms: one of the two products may be fused with the sum.

    Specials: IEEE: at angle 0 an infinity or a NaN makes its partner NaN (times 0); a zero's sign is that of the sum.

    Source: Su et al., RoFormer, 2021, section 3.2.2.
    """
    width = 2 * cos.shape[-1]
    turned = rotated(r, x[..., :width], cos, sin, pairing)
    if width == x.shape[-1]:
        return r.round("out", turned)
    return r.round("out", r.concat([turned, x[..., width:]]))


def rotated(r: Reading, x: Quantity, cos: Quantity, sin: Quantity, pairing: str) -> Quantity:
    """The rotary dims before their last rounding."""
    tokens, heads, width = x.shape
    half = width // 2
    axes, run = {"halves": (1, half), "interleaved": (half, 1), "by_axis": (2, half // 2)}[pairing]
    pairs = x.reshape(tokens, heads, axes, 2, run)
    c = cos.reshape(tokens, 1, axes, run)
    s = sin.reshape(tokens, 1, axes, run)
    a, b = pairs[..., 0, :], pairs[..., 1, :]
    turned = [_sum(r, a, c, -b, s), _sum(r, b, c, a, s)]
    parts = [part.reshape(tokens, heads, axes, 1, run) for part in turned]
    return r.concat(parts, axis=-2).reshape(tokens, heads, width)


def _sum(r: Reading, x: Quantity, c: Quantity, y: Quantity, s: Quantity) -> Quantity:
    """x c + y s, where the profile does not round the products with either of them fused."""
    first, second = r.round("cos_product", x * c), r.round("sin_product", y * s)
    if r.profile.points["cos_product"] is not None:
        return first + second
    return r.union(r.fma(x, c, second), r.fma(y, s, first, fused="yes"))
