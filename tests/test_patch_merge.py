"""2 x 2 merges: literal blocks, every bit, and the order that a block-major tower has already."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contract.case import find, make_case
from contract.kernels.grids import block_order
from contract.kernels.patch_merge import patch_merge_torch, strips
from contract.ranges import case_range

KERNEL = find("patch_merge", "moved")


def refused(bits: Any, merged: Any) -> int:
    """How many values of a merge of these bf16 bits (rows, 2, wide, d) are not allowed."""
    rows, _, wide, d = bits.shape
    allowed = case_range(KERNEL, make_case(KERNEL, strips(rows, wide // 2, d), {"x": bits}))["out"]
    return int(allowed.refused(merged.reshape(allowed.lo.shape)).sum())


def test_a_block_is_upper_left_upper_right_lower_left_lower_right() -> None:
    #  0  1 |  2  3
    #  4  5 |  6  7
    bits = np.arange(8, dtype=np.uint16).reshape(1, 2, 4, 1)
    assert refused(bits, np.array([0, 1, 4, 5, 2, 3, 6, 7], np.uint16)) == 0
    raster = np.arange(8, dtype=np.uint16)
    assert refused(bits, raster) == 4
    transposed = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint16)
    assert refused(bits, transposed) == 4


def test_every_bf16_pattern_is_moved_as_it_is() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(2, 2, 128, 128)
    x = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    out = patch_merge_torch(x).view(torch.int16).numpy().view(np.uint16)
    assert refused(bits, out) == 0
    assert sorted(out.ravel()) == list(range(1 << 16))


def test_a_tower_in_block_order_merges_by_a_reshape() -> None:
    raster = torch.arange(6 * 4 * 3.0).reshape(24, 3)
    by_strip = patch_merge_torch(raster.reshape(3, 2, 4, 3)).reshape(6, 12)
    blocks = raster[torch.from_numpy(block_order(6, 4, 2))]
    assert torch.equal(by_strip, blocks.reshape(6, 12))
    assert not torch.equal(by_strip, raster.reshape(6, 12))
