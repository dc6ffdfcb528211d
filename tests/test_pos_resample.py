"""Resampled positions: pinned corners, sizes, transformers' taps and rows, literal roundings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import find, make_case
from contract.kernels.grids import block_order
from contract.kernels.pos_resample import axis_taps, bilinear_taps, pos_resample_torch
from contract.ranges import case_range


def allowed(table: Any, taps: Any, weights: Any, hidden: Any = None, profile: str = "each") -> Any:
    """The range of a case."""
    kernel = find("pos_resample", profile, {"adds": "no" if hidden is None else "yes"})
    values = {"table": table, "taps": taps, "weights": weights}
    if hidden is not None:
        values["hidden"] = hidden
    entries, d = np.shape(table)
    case = make_case(kernel, {"rows": len(taps), "entries": entries, "d": d, "four": 4}, values)
    return case_range(kernel, case)["out"]


def refused(out: Any, values: Any) -> int:
    values = np.broadcast_to(np.asarray(values, np.float64), out.lo.shape)
    return int(out.refused(formats.encode(formats.round_to(values, "bf16"), "bf16")).sum())


def column(table: Any, values: Any) -> Any:
    return np.asarray(values, np.float64)[:, None]


# ---- the grid


#: a 3 x 3 table whose rows are all 0, 10, 40: one axis of it, resampled to five columns
AXIS = np.repeat([[0.0, 10.0, 40.0]], 3, axis=0).reshape(9, 1)


def test_corners_are_pinned() -> None:
    out = allowed(AXIS, *bilinear_taps(1, 5, 3))
    right = column(AXIS, [0.0, 5.0, 10.0, 25.0, 40.0])
    assert refused(out, right) == 0
    centres = column(AXIS, [0.0, 4.0, 10.0, 28.0, 40.0])
    repeated = column(AXIS, [0.0, 0.0, 10.0, 10.0, 40.0])
    assert refused(out, centres) == 2
    assert refused(out, repeated) == 2
    # those values are what pixel centres give
    assert refused(allowed(AXIS, *bilinear_taps(1, 5, 3, align_corners=False)), centres) == 0
    assert refused(allowed(AXIS, *bilinear_taps(1, 5, 3, align_corners=False)), right) == 2


def test_the_columns_of_the_grid_run_along_the_columns_of_the_table() -> None:
    table = np.arange(9.0).reshape(9, 1)
    out = allowed(table, *bilinear_taps(2, 3, 3))
    # rows 0 and 2 of the table
    assert refused(out, column(table, [0, 1, 2, 6, 7, 8])) == 0
    assert refused(out, column(table, [0, 3, 6, 2, 5, 8])) == 4
    height_as_width = column(table, [0, 2, 3, 5, 6, 8])
    assert refused(out, height_as_width) == 4


@pytest.mark.parametrize(("side", "size"), [(13, 107), (42, 51), (13, 15), (27, 61)])
def test_there_are_as_many_positions_as_patches(side: int, size: int) -> None:
    # int((size / side) * side) is one short at these sizes
    assert int((size / side) * side) == size - 1
    taps, weights = bilinear_taps(size, 2, side)
    assert taps.shape == weights.shape == (2 * size, 4)
    assert taps.max() == side * side - 1


def test_a_side_of_one_and_a_single_patch() -> None:
    taps, weights = axis_taps(1, 48)
    assert taps.tolist() == [[0, 1]]
    assert weights.tolist() == [[1.0, 0.0]]
    assert axis_taps(3, 1)[0].tolist() == [[0, 0]] * 3
    with pytest.raises(ValueError, match="size=0"):
        axis_taps(0, 48)


def test_the_last_patch_is_the_last_entry_whatever_fp32_gives() -> None:
    table = np.arange(48.0 * 48).reshape(-1, 1)
    for size in range(2, 100):
        taps, weights = bilinear_taps(size, size, 48)
        ends = (table[taps[[0, -1]]] * weights[[0, -1], :, None]).sum(1)
        assert np.abs(ends - [[0.0], [48 * 48 - 1]]).max() < 1e-3


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("corners", [True, False])
def test_transformers_makes_the_same_taps(merge: int, corners: bool) -> None:
    utils = pytest.importorskip("transformers.vision_utils")
    for rows, columns in ((16, 16), (14, 22), (2, 60), (48, 48), (96, 4)):
        grid = torch.tensor([[1, rows, columns]])
        indices, weights = utils.get_vision_interpolation_indices_and_weights(
            grid, 48, align_corners=corners, spatial_merge_size=merge
        )
        mine = bilinear_taps(rows, columns, 48, align_corners=corners, merge=merge)
        np.testing.assert_array_equal(mine[0], indices.numpy())
        np.testing.assert_array_equal(mine[1], weights.numpy())


def test_block_order_goes_block_by_block() -> None:
    assert block_order(2, 4, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert block_order(3, 3, 2).tolist() == [0, 1, 3, 4, 2, 5, 6, 7, 8]
    assert block_order(2, 3, 1).tolist() == list(range(6))


# ---- the rows


def test_the_sum_of_the_taps_is_rounded_where_the_profile_says_so() -> None:
    table = np.array([[255.0], [254.0], [1.0], [3.0]])
    taps = [[0, 1, 2, 3]]
    # 191.25 + 31.75 + 0.125 + 0.1875 = 223.3125 -> 223 (steps of 1)
    weights = [[0.75, 0.125, 0.125, 0.0625]]
    assert refused(allowed(table, taps, weights), 223.0) == 0
    assert refused(allowed(table, taps, weights), 224.0) == 1
    # 223.3125 - 0.75 = 222.5625 -> 223, and 223 - 0.75 = 222.25 -> 222
    hidden = [[-0.75]]
    for profile, right, other in (("each", 222.0, 223.0), ("fused", 223.0, 222.0)):
        out = allowed(table, taps, weights, hidden, profile)
        assert (refused(out, right), refused(out, other)) == (0, 1)


def test_a_tap_of_weight_zero_still_counts() -> None:
    table = np.array([[1.0], [np.inf], [2.0], [3.0]])
    assert refused(allowed(table, [[0, 1, 2, 3]], [[1.0, 0.0, 0.0, 0.0]]), np.nan) == 0
    assert refused(allowed(table, [[0, 1, 2, 3]], [[1.0, 0.0, 0.0, 0.0]]), 1.0) == 1


@pytest.mark.parametrize("profile", ["each", "fused"])
def test_the_torch_kernel_is_allowed_on_a_resampled_table(profile: str) -> None:
    rng = np.random.default_rng(3)
    table = formats.round_to(rng.standard_normal((49, 8)), "bf16")
    hidden = formats.round_to(rng.standard_normal((60, 8)), "bf16")
    taps, weights = bilinear_taps(6, 10, 7, merge=2)
    out = pos_resample_torch(
        torch.from_numpy(table).bfloat16(),
        torch.from_numpy(taps),
        torch.from_numpy(weights),
        torch.from_numpy(hidden).bfloat16(),
        profile=profile,
    )
    values = out.double().numpy()
    assert refused(allowed(table, taps, weights, hidden, profile), values) == 0
    raster = bilinear_taps(6, 10, 7)
    assert refused(allowed(table, *raster, hidden, profile), values) > 200
