"""Blocks of 2 x 2 patches joined to one row: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

MERGE = 2


def patch_merge(r: Reading, x: Quantity) -> Quantity:
    """Each block's four rows side by side: upper left, upper right, lower left, lower right.

    A row of the contract is a strip of the image, two rows of patches. Where the tower's patches come block by block
    already, the same result is a reshape of them.

    Args:
        x: (rows, two, wide, d) bf16, strips of two rows of `wide` patches in raster order.

    Rounding points: none; every bit is moved, NaN and subnormals with it.

    Source: transformers, modeling_qwen2_vl.py, PatchMerger.
    """
    strips, two, wide, d = x.shape
    blocks = x.reshape(strips, two, wide // MERGE, MERGE, d).swapaxes(1, 2)
    return blocks.reshape(strips, wide // MERGE, two * MERGE * d)
