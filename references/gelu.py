"""GELU: what the kernel must compute."""

from __future__ import annotations

import math

from contract.readings.base import Quantity, Reading

CUBIC = 0.044715
ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
ROOT_HALF = math.sqrt(0.5)


def gelu(r: Reading, x: Quantity, form: str) -> Quantity:
    """GELU: y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), or x / 2 * (1 + erf(x / sqrt(2))).

    Args:
        x: (rows, n) bf16, or fp32 under the profile float32.
        form: 'tanh' or 'erf'; they differ by up to 5e-4.

    Rounding points:
        out: the result.

    Freedoms: tanh and erf within 2 fp32 ulps; any step may be fused with the next. For x below -4 the sum 1 + tanh
    cancels, and the range is thousands of the output's own ulps wide (but 1e-6 of x): so is fp32 arithmetic there.

    Specials: +inf stays, -inf may give NaN (infinity times a zero), a NaN stays, a zero keeps its sign.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
    """
    if form == "tanh":
        cubic = x + r.square(x) * x * CUBIC
        squashed = r.tanh(cubic * ROOT_TWO_OVER_PI, ulps=2)
    else:
        squashed = r.erf(x * ROOT_HALF, ulps=2)
    return r.round("out", (x * 0.5) * (1.0 + squashed))
