"""Vectors times a four-bit weight: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.packing import nibbles

#: What a symmetric checkpoint adds to its codes -8 .. 7 to store them.
MIDDLE = 8


def w4_gemv(
    r: Reading,
    x: Quantity,
    words: Quantity,
    scales: Quantity,
    zeros: Quantity | None,
    offset: Quantity | None,
    block: str,
    offsets: str,
) -> Quantity:
    """y[n] = sum over k of x[k] w[n, k] for each vector, w[n, k] = (q[n, k] - z[n, k // block]) s[n, k // block].

    With offsets=yes w[n, k] = (q[n, k] - 8) s[n, k // 32] + o[n, k // 32]. GGUF's Q4_1, w = d q + m, is this with s = d
    and o = m + 8 d, each rounded once to bf16 where the file is read.

    Args:
        x: (rows, k) bf16; a row is one vector, and a decoding step has one or a few.
        words: (n, k / 8) int32, eight codes q of 0 .. 15 each, the first in the low bits.
        scales: (n, k / block) bf16, finite.
        zeros: (n, k / 128) codes 0 .. 15 with block=128; z = 8 with block=32, which has none.
        offset: (n, k / 32) bf16 with offsets=yes, finite; with offsets=no there is none.
        block: '32', symmetric (AWQ in compressed-tensors) or with offsets, or '128', asymmetric.

    Rounding points:
        offset: (8 - z) s, the number that kernels add to (q - 8) s where they hold no zero point (offset). Without
            this point w is (q - z) s itself.
        weight: w before the product (dequantised); (q - z) s has 13 bits, so that fp32 holds it exactly. With offsets w
            is an fp32 number.
        out: y, once.

    Freedoms: the sum over k in any order, products fused or not; w with an offset as q s + (o - 8 s), whose bracket
    is an fp32 number.

    Specials: an infinite x times a weight of zero is NaN.

    Source: Lin et al., AWQ: Activation-aware Weight Quantization, 2024; compressed-tensors, pack-quantized; ggml,
    block_q4_1.
    """
    weight = r.round("weight", dequantised(r, words, scales, zeros, offset))
    return r.round("out", r.dot(x, weight.swapaxes(0, 1)))


def dequantised(
    r: Reading,
    words: Quantity,
    scales: Quantity,
    zeros: Quantity | None,
    offset: Quantity | None = None,
) -> Quantity:
    """The weight (n, k) before it is rounded; z = 8 where there are no zero points."""
    n, groups = scales.shape
    codes = nibbles(r.integers(words)).reshape(n, groups, -1)
    scale = scales.reshape(n, groups, 1)
    zero = MIDDLE if zeros is None else r.integers(zeros)[..., None]
    if offset is not None:
        moved = offset.reshape(n, groups, 1)
        added = r.exactly(codes - MIDDLE) * scale + moved
        weight = r.union(added, r.exactly(codes) * scale + (moved - scale * float(MIDDLE)))
    elif r.profile.points["offset"] is None:
        weight = r.exactly(codes - zero) * scale
    else:
        offset = r.round("offset", r.exactly(MIDDLE - zero) * scale)
        weight = r.exactly(codes - MIDDLE) * scale + offset
    return weight.reshape(n, -1)
