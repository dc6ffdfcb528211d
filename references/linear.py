"""Dense layer: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def linear(
    r: Reading,
    x: Quantity,
    weight: Quantity,
    bias: Quantity | None,
    bias_term: str,
    added: str,
) -> Quantity:
    """Product with a weight stored output by input: y[m, n] = sum_k x[m, k] W[n, k] + b[n].

    Args:
        x: (rows, k) bf16; fp16 under float16, fp32 under float32.
        weight: (n, k), same format.
        bias: (n,), same format; absent with bias_term=no.
        bias_term: 'yes' or 'no'.
        added: 'inside', the bias is a term of the sum (its start, or the last addition); 'after', it is added to the
            product.

    Rounding points:
        product: the product before the bias (bias_after only).
        out: the result.

    Freedoms: the sum in any order, with products fused or not.

    Specials: IEEE: 0 times an infinity and infinities of both signs are NaN.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.3 (the dense layers of a block).
    """
    columns = weight.swapaxes(-1, -2)
    if bias_term == "no" or bias is None:
        return r.round("out", r.round("product", r.dot(x, columns)))
    if added == "inside":
        return r.round("out", r.dot(x, columns, start=bias))
    return r.round("out", r.round("product", r.dot(x, columns)) + bias)
