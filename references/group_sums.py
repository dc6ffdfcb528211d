"""Sums of groups of 64 values along a stated tree: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

GROUP = 64


def group_sums(r: Reading, x: Quantity) -> Quantity:
    """Sum of each 64 neighbouring values of a row, bit for bit: six levels of fp32 additions of neighbours.

        level k: a[i] = a[2 i] + a[2 i + 1], i < 64 / 2^k

    Affine quantised products need these sums once per row and group (zero point times sum of x). The tree is part of
    the kernel, so that two programs that share them agree; no order is free and no step may be kept wider.

    Args:
        x: (rows, 64 groups) fp32, or bf16 under the profile bf16_rows.

    Rounding points:
        level1 .. level6: every addition, to fp32, subnormals kept.

    Specials: IEEE additions: infinities of both signs in one group give NaN; a group of -0 sums to -0.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.1 (pairwise summation).
    """
    a = x.reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    a = r.round("level1", a[..., 0::2] + a[..., 1::2])
    a = r.round("level2", a[..., 0::2] + a[..., 1::2])
    a = r.round("level3", a[..., 0::2] + a[..., 1::2])
    a = r.round("level4", a[..., 0::2] + a[..., 1::2])
    a = r.round("level5", a[..., 0::2] + a[..., 1::2])
    return r.round("level6", a[..., 0] + a[..., 1])
