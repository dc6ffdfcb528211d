"""The bias that makes up for quantised weights and activations: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def bias_correct(
    r: Reading,
    weight: Quantity,
    quantised: Quantity,
    mean: Quantity,
    quantised_mean: Quantity,
    bias: Quantity,
) -> Quantity:
    """b' = b + W mean(x) - W_q mean(x_q): the mean output over the calibration data is what it was.

    Args:
        weight: (outputs, channels) fp32, before quantisation.
        quantised: (outputs, channels) fp32, the values of its codes.
        mean: (channels) fp32, mean(x) over the calibration data.
        quantised_mean: (channels) fp32, mean(x_q), of the values of its codes.
        bias: (outputs) bf16 or fp32.

    Rounding points:
        out: the new bias, in the format of the old one.

    Freedoms: the products of both sums, and b, added up in any order in fp32.

    Source: Nagel, van Baalen, Blankevoort and Welling, Data-Free Quantization Through Weight Equalization and Bias
        Correction, 2019, section 4.2.
    """
    rows, columns = r.concat([weight, -quantised]), r.concat([mean, quantised_mean])
    start = bias.reshape(-1, 1)
    total = r.dot(rows, columns.reshape(-1, 1), start=start, name="products")
    return r.round("out", total.reshape(-1))
