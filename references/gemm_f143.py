"""Product of fp8 codes with power-of-two scales: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def gemm_f143(r: Reading, x: Quantity, weight: Quantity, k_a: float, k_w: float) -> Quantity:
    """y[m, n] = (sum_k x[m, k] W[n, k]) 2^(k_a + k_w).

    Args:
        x: (rows, k) e4m3fnuz (1-4-3, bias 8: largest value 240, code 0x80 is the one NaN, no infinity, no -0).
        weight: (n, k) e4m3fnuz.
        k_a, k_w: integers in -32 .. 31: an operand's values are code * 2^k.

    Rounding points:
        out: the result, once; a product with a power of two needs no rounding of its own.

    Freedoms: the fp32 sum in any order.

    Specials: a NaN code makes its outputs NaN.

    Source: Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022 (1-4-3 with a scale bias).
    """
    return r.round("out", r.dot(x, weight.swapaxes(-1, -2)) * 2.0 ** (k_a + k_w))
