"""Softmax of rows: what the kernel must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading

#: The largest fp32 number: below its negative lies -inf alone.
LARGEST = float(np.finfo(np.float32).max)


def softmax(r: Reading, x: Quantity, empty: str) -> Quantity:
    """y = exp(x - m) / sum exp(x - m), m the row's largest value.

    Args:
        x: (rows, n) bf16 (fp32 under float32); -inf where a place is masked.
        empty: a row that is -inf everywhere: 'nan' (-inf - -inf), or 'zeros'.

    Rounding points:
        out: the result, once.

    Freedoms: exp within 2 fp32 ulps, the sum in any order, a quotient or a product with the reciprocal.

    Specials: a masked place is exactly 0 beside a finite one; a NaN or +inf makes its row NaN.

    Source: Bridle, Probabilistic interpretation of feedforward classification network outputs, 1990; the maximum is
    taken off as in Blanchard, Higham and Higham, 2021, section 3.
    """
    top = r.max(x)
    raised = r.exp(x - top, ulps=2)
    total = r.sum(raised)
    shares = r.union(raised / total, raised * (1.0 / total))
    if empty == "zeros":
        shares = r.where(r.less(top, -LARGEST), r.exactly(0.0), shares)
    return r.round("out", shares)
