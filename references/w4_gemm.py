"""Rows times a four-bit weight that is dequantised first: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.packing import nibbles


def w4_gemm(
    r: Reading,
    x: Quantity,
    words: Quantity,
    scales: Quantity,
    zeros: Quantity | None,
    block: str,
) -> Quantity:
    """y = x w^T with w[n, k] = (q[n, k] - z[n, k // block]) s[n, k // block] in the format of x: prefill.

    Args:
        x: (rows, k) bf16 (bf16) or fp16 (fp16).
        words: (n, k / 8) int32, eight codes q of 0 .. 15 each, the first in the low bits.
        scales: (n, k / block) in the format of x, finite.
        zeros: (n, k / 128) codes 0 .. 15 with block=128; z = 8 with block=32, which has none.
        block: '32', symmetric, or '128', asymmetric.

    Rounding points:
        weight: w, as a matrix engine reads it; beyond the format's largest value it is an infinity.
        out: y, once.

    Freedoms: the sum over k in any order, products fused or not.

    Source: Frantar et al., Marlin: mixed-precision auto-regressive parallel inference, 2024 (dequantised in registers,
    fp32 accumulation).
    """
    n, groups = scales.shape
    codes = nibbles(r.integers(words)).reshape(n, groups, -1)
    zero = 8 if zeros is None else r.integers(zeros)[..., None]
    weight = r.round("weight", r.exactly(codes - zero) * scales.reshape(n, groups, 1))
    return r.round("out", r.dot(x, weight.reshape(n, -1).swapaxes(0, 1)))
