"""A linear layer with affine-quantised weights: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading
from contract.references.bit_streams import bit_fields


def qlinear_affine(
    r: Reading,
    x: Quantity,
    words: Quantity,
    scales: Quantity,
    biases: Quantity,
    bits: str,
    terms: str,
) -> Quantity:
    """y = x W^T with W[n, j] = q[n, j] s[n, j // g] + b[n, j // g], g = k / groups.

    Args:
        x: (rows, k) bf16.
        words: (n, k bits / 32) int32: each row a little-endian stream of codes, code j in bits j*b .. j*b + b - 1.
        scales, biases: (n, groups) bf16, of groups of 32, 64 or 128 neighbours.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.
        terms: what is summed: 'whole', x W; 'split', x q s and x b apart; 'groups', s sum(x q) + b sum(x) of each group.

    Rounding points:
        weight: W to bf16 before it multiplies (dequantised).
        out: bf16.

    Freedoms: the sum in any order in fp32; q s + b in fp32 or wider, fused or not. A factor that is taken out of a part
        of a group's sum costs a term one rounding where it saves it one: the bound of 'split' holds. Only where a sum
        of x q overflows and those of x q s do not is taking s out of a whole group a way of its own.

    Source: MLX, quantized.h: qmm dequantises a tile, qmv adds s sum(x q) + b sum(x) a group.
    """
    codes = bit_fields(r.integers(words), int(bits))
    (n, k), groups = codes.shape, scales.shape[-1]
    q = r.exactly(codes.reshape(n, groups, -1))
    if terms == "groups":
        # (groups, rows, g) @ (groups, g, n)
        parts = x.reshape(x.shape[0], groups, -1).swapaxes(0, 1)
        sums = r.dot(parts, q.swapaxes(0, 1).swapaxes(1, 2))
        totals = r.sum(parts, name="groups")
        s, b = (t.swapaxes(0, 1)[:, None] for t in (scales, biases))
        return r.round("out", r.sum(sums * s + totals * b, axis=0, name="groups")[0])
    product = q * scales[..., None]
    if terms == "split":
        spread = r.take(biases, np.arange(k) * groups // k, axis=1)
        both = r.concat([product.reshape(n, k), spread])
        return r.round("out", r.dot(r.concat([x, x]), both.swapaxes(0, 1)))
    w = r.round("weight", product + biases[..., None]).reshape(n, k)
    return r.round("out", r.dot(x, w.swapaxes(0, 1)))
