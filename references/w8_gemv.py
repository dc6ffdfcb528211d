"""Vectors times an eight-bit weight: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

#: Inputs that share a scale.
BLOCK = 32


def w8_gemv(r: Reading, x: Quantity, codes: Quantity, scales: Quantity, split: str) -> Quantity:
    """y[n] = sum over k of x[k] w[n, k] for each vector, w[n, k] = q[n, k] s[n, k // 32].

    Args:
        x: (rows, k) bf16; a row is one vector, and a decoding step has one or a few.
        codes: (n, k) int8, codes q. GGUF's Q8_0 has -127 .. 127; -128 is a code like the others.
        scales: (n, k / 32) bf16, finite. GGUF's are fp16, rounded once to bf16 where the file is read.

    Rounding points:
        out: y, once.

    Options:
        split: 'whole', the terms are x q s, and q s, of 16 bits, is an fp32 number; 'planes', q = 16 hi + lo with
            hi in -8 .. 7 and lo in 0 .. 15, and the terms are x (16 hi s) and x (lo s). These are larger than their sum
            where q < 0, so that a sum of them in some order may lie further off than one of whole products.

    Freedoms: the sum of the terms in any order, products fused or not.

    Specials: an infinite x times a term's weight of zero is NaN: of planes also where hi or lo alone is 0, or where they
    have other signs.

    Source: ggml, block_q8_0; splitting a wide code into planes is the schoolbook's digit product with the base 16.
    """
    n, blocks = scales.shape
    q = r.integers(codes).reshape(n, blocks, BLOCK)
    scale = scales.reshape(n, blocks, 1)
    if split == "whole":
        weight = (r.exactly(q) * scale).reshape(n, -1)
        return r.round("out", r.dot(x, weight.swapaxes(0, 1)))
    planes = [(r.exactly(plane) * scale).reshape(n, -1) for plane in (q >> 4 << 4, q & 15)]
    both = r.concat(planes, axis=-1).swapaxes(0, 1)
    return r.round("out", r.dot(r.concat([x, x], axis=-1), both))
