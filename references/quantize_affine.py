"""Affine quantisation of one group of weights, as MLX does it: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading

#: The least scale, 1e-7 as an fp32 number.
LEAST = float.fromhex("0x1.ad7f2ap-24")
#: Beyond it every fp32 number is whole.
WHOLE = float(2**23)


def quantize_affine(r: Reading, x: Quantity, bits: str, codes_from: str) -> dict[str, Quantity]:
    """codes = clamp(round((x - bias) / scale), 0, n), n = 2^bits - 1, with x ~ codes * scale + bias.

        s = max((hi - lo) / n, 1e-7); edge = lo where |lo| > |hi|, else edge = hi and s = -s
        q0 = round(edge / s); scale = edge / q0 and bias = edge, or s and 0 where q0 = 0

    The end of the larger magnitude is exact, and 0 is as near to a code as s allows.

    Args:
        x: (rows, group) bf16 or fp16, finite: one group a row, 32, 64 or 128 values.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.
        codes_from: whether codes are computed from the 'unrounded' scale and bias (MLX) or from the 'stored' ones.

    Rounding points:
        edge_code: q0, to a whole number, ties to even.
        code: to a whole number, ties to even.
        scale, bias: what is stored, in the format of x.

    Freedoms: all other steps in fp32 or wider.

    Specials: a group of zeros has scale -1e-7, bias 0 and codes 0; a group of one value has that bias and codes 0.

    Source: MLX, mlx/backend/cpu/quantized.cpp (quantize).
    """
    n = float((1 << int(bits)) - 1)
    lo, hi = r.min(x), r.max(x)
    span = r.maximum((hi - lo) / n, LEAST)
    low = r.less(r.abs(hi), r.abs(lo))
    edge, step = r.where(low, lo, hi), r.where(low, span, -span)
    ratio = edge / step
    near = r.converted(r.round("edge_code", ratio))
    whole = r.where(r.less(r.abs(ratio), WHOLE), near, ratio)
    none = r.less(r.abs(whole), 0.5)
    scale = r.where(none, step, edge / whole)
    bias = r.where(none, r.exactly(np.zeros(edge.shape)), edge)
    stored = r.round("scale", scale.reshape(-1)), r.round("bias", bias.reshape(-1))
    if codes_from == "stored":
        scale, bias = (t[:, None] for t in stored)
    quotient = (x - bias) / scale
    codes = r.round("code", r.maximum(r.minimum(quotient, n), 0.0))
    return {"codes": codes, "scale": stored[0], "bias": stored[1]}
