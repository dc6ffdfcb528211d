"""GPTQ of one block of up to 64 input channels: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

BLOCK = 64
#: Smallest and largest int4 code.
INT4 = (-8.0, 7.0)


def gptq_block64(
    r: Reading, weight: Quantity, factor: Quantity, scales: Quantity, to: str
) -> dict[str, Quantity]:
    """Channel by channel: q_j = Q(w_j / s);  e_j = (w_j - q_j s) / U_jj;  w_k <- w_k - e_j U_jk for k > j.

    What rounding channel j loses moves the channels after it, as far as the data correlates them.

    Args:
        weight: (rows, columns) fp32, finite: the output channels' weights of this block of input channels.
        factor: (columns, columns) fp32, finite: U, upper triangular, U^T U = H^-1, H = X^T X + lambda I of the block's
            inputs. What lies below the diagonal is not read.
        scales: (rows) fp32, positive: s of each output channel (equal ones where the tensor has one).
        to: e4m3fnuz (saturating) or int4 (-8 to 7): the format of a code.

    Rounding points:
        compensated: every update of a weight, in fp32; w_j is stored as it is when its turn comes.
        code: q_j, to nearest, ties to even, from the stored w_j.

    Freedoms: quotients and products in fp32 or wider; e_j U_jk fused with its difference or not.

    Specials: finite values; what overflows on the way is a NaN or saturates, and a NaN is the int4 code 0.

    Source: Frantar, Ashkboos, Hoefler and Alistarh, GPTQ, 2023, section 3.3 and algorithm 1, each block with a Hessian of
        its own, so that no error leaves it.
    """
    columns, scale = weight.shape[1], scales.reshape(-1, 1)
    left, codes = weight, []
    for j in range(columns):
        turn = r.observed("compensated", left[:, :1], along=-1)
        code = r.round("code", held(r, turn / scale, to))
        codes.append(code)
        if j + 1 < columns:
            error = (turn - code * scale) / factor[j : j + 1, j : j + 1]
            moved = r.fma(-error, factor[j : j + 1, j + 1 :], left[:, 1:])
            left = r.round("compensated", moved)
    return {"codes": r.concat(codes)}


def held(r: Reading, quotient: Quantity, to: str) -> Quantity:
    """Within the range of an integer code; the rounding of a float format saturates by itself."""
    if to != "int4":
        return quotient
    inside = r.maximum(r.minimum(quotient, INT4[1]), INT4[0])
    # false for NaN alone
    return r.where(r.less(inside, INT4[1] + 1.0), inside, 0.0)
