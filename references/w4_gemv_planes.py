"""Vectors of int16 codes times a four-bit weight, in two int8 planes: what the kernel must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.readings.base import Quantity, Reading
from contract.references.packing import nibbles

#: Inputs that share a scale and a zero point.
BLOCK = 128
#: The largest code whose high plane is 127 where the low plane is signed.
TOP = 127 * 256 + 127


def w4_gemv_planes(
    r: Reading, a: Quantity, words: Quantity, scales: Quantity, zeros: Quantity, low: str
) -> Quantity:
    """y[n] = sum over blocks b of s_b t_b, t_b = 256 sum q hi + sum q lo - z_b (256 sum hi + sum lo), a = 256 hi + lo.

    The sums over the 128 inputs of a block are exact: |sum q hi| <= 245,760, |t_b| < 2^26.

    Args:
        a: (rows, k) int16, the codes of the activations; their scale is in s.
        words: (n, k / 8) int32, eight codes q of 0 .. 15 each, the first in the low bits.
        scales: (n, k / 128) fp32 (once) or fp16 (half), finite.
        zeros: (n, k / 128) codes 0 .. 15.
        low: 'signed', lo in -128 .. 127: codes above 32,639, whose high plane would be 128, are clamped to 32,639; or
            'unsigned', lo in 0 .. 255 and every code as it is.

    Rounding points:
        out: y, once, bf16 (once) or fp16 (half).

    Freedoms: t_b is rounded to fp32 or kept; the sum over blocks in any order, its products fused or not.

    Source: Dettmers et al., LLM.int8(), 2022 (exact int32 products); splitting a wide code into planes is Karatsuba's
    and the schoolbook's digit product with the base 256.
    """
    n, blocks = scales.shape
    q = nibbles(r.integers(words)).reshape(n, blocks, BLOCK)
    z = r.integers(zeros)
    high, lower = planes(r.integers(a), low)
    high, lower = (p.reshape(len(p), blocks, BLOCK) for p in (high, lower))
    sums = 256 * block_sums(high, q) + block_sums(lower, q)
    totals = 256 * high.sum(-1) + lower.sum(-1)
    exact = sums - z * totals[:, None, :]
    terms = r.converted(r.exactly(exact)) * scales
    return r.round("out", r.sum(terms, axis=-1, name="blocks").reshape(len(high), n))


def planes(a: Any, low: str) -> tuple[Any, Any]:
    """Codes (rows, k) as high and low plane."""
    if low == "unsigned":
        return a >> 8, a & 255
    held = np.minimum(a, TOP)
    lower = ((held + 128) & 255) - 128
    return (held - lower) >> 8, lower


def block_sums(plane: Any, q: Any) -> Any:
    """(rows, n, blocks): the exact sum over each block of a plane times the codes."""
    return np.einsum("rbk,nbk->rnb", plane, q)
