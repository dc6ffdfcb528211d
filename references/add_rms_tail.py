"""The tail of a residual block: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def add_rms_tail(
    r: Reading,
    x: Quantity,
    residual: Quantity,
    branch_weight: Quantity | None,
    scalar: Quantity | None,
    weight: Quantity,
    eps: float,
    branch_norm: str,
    scale: str,
    reads: str,
) -> dict[str, Quantity]:
    """Norm of the branch, residual sum, scalar, next norm: total = (norm(x) w_b + h) s, out = norm(total) w.

    norm(a) = a / sqrt(mean(a^2) + eps) along a row.

    Args:
        x: (rows, d) bf16, the branch (what attention or the feed-forward layer gave).
        residual: (rows, d) bf16, the stream h before the branch.
        branch_weight: (d,) bf16, gain of the branch's norm; absent with branch_norm=no, which adds x itself.
        scalar: () bf16, one number a layer; absent with scale=no.
        weight: (d,) bf16, gain of the next norm.
        eps: added to both mean squares, in units of x squared; positive.
        reads: 'stored', the next norm reads the rounded total, or 'unrounded', the sum before the store.

    Rounding points:
        branch: the branch after its norm and gain (each, each_norm).
        sum: the residual sum before the scalar (each).
        total: the stream that is stored, always.
        normed: the total times its inverse root mean square, before the gain (two_step).
        out: the normed stream, always.

    Freedoms: the mean squares in any order; rsqrt within 2 fp32 ulps.

    Specials: as rms_norm; an infinity of one sign in branch and of the other in the stream is NaN.

    Source: Gemma 3 Technical Report, 2025, section 2 (norms before and after each sub-layer); two_step is the sum and
    the norm of Llama, Touvron et al., LLaMA, 2023, section 2.2.
    """
    branch = x
    if branch_weight is not None:
        inverse = r.rsqrt(r.mean(r.square(x), name="branch_mean") + eps)
        branch = r.round("branch", x * inverse * branch_weight)
    stream = branch + residual
    if scalar is not None:
        stream = r.round("sum", stream) * scalar
    total = r.round("total", stream)
    source = total if reads == "stored" else stream
    inverse = r.rsqrt(r.mean(r.square(source), name="mean") + eps)
    normed = r.round("normed", source * inverse)
    return {"total": total, "out": r.round("out", normed * weight)}
