"""The residual sum: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def residual_add(r: Reading, a: Quantity, b: Quantity) -> Quantity:
    """out = a + b, element by element.

    Args:
        a: (rows, d) bf16 (fp32 under float32), the stream.
        b: the same, what a branch adds to it.

    Rounding points:
        out: the sum, once.

    Freedoms: the sum in fp32 or wider.

    Specials: infinities of both signs give NaN; -0 + -0 is -0, other zero sums are +0.

    Source: He et al., Deep Residual Learning for Image Recognition, 2015, equation 1.
    """
    return r.round("out", a + b)
