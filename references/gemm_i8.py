"""Product of int8 codes with its scales: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def gemm_i8(
    r: Reading,
    x: Quantity,
    weight: Quantity,
    x_scale: Quantity,
    w_scale: Quantity | None,
    w_scales: Quantity | None,
    granularity: str,
) -> Quantity:
    """Symmetric quantised layer: y[m, n] = (sum_k x[m, k] W[n, k]) (s_x s_w[n]).

    Args:
        x: (rows, k) int8 codes of the activations, all of -128 .. 127.
        weight: (n, k) int8 codes.
        x_scale: () fp32, value of one step of x.
        w_scale: () fp32, value of one step of the weight (granularity=tensor).
        w_scales: (n,) fp32, one per output channel (granularity=channel).
        granularity: 'tensor' or 'channel'.

    Rounding points:
        scale: s_x s_w in fp32, formed before it meets the sum.
        out: the result.

    Freedoms: the int32 sum, which is exact below 2^31, may be rounded to fp32 before it is multiplied, or not.

    Specials: a zero sum gives a zero; a NaN scale makes its outputs NaN.

    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference,
    2018, section 2.2, with zero points of 0.
    """
    total = r.exactly(r.integers(x) @ r.integers(weight).T)
    steps = w_scale if w_scales is None else w_scales
    assert steps is not None
    scale = r.round("scale", x_scale * steps)
    return r.round("out", r.converted(total) * scale)
