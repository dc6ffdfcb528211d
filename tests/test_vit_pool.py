"""3 x 3 pooling: literal means, padded images, transformers' pooler, and the rows that the exact gate lives on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Case, find, make_case
from contract.inputs import exact_cases
from contract.kernels.grids import grid_cells, grid_of, patch_positions
from contract.kernels.vit_pool import exact_means, nine_sums, vit_pool_torch
from contract.ranges import case_range

PROFILES = ("mean", "each_step")


def pooling(
    profile: str, x: Any, positions: Any, cells: Any, root: float = 1.0, **standard: Any
) -> tuple[Case, Any]:
    """A case and its range; no bias and a scale of 1 unless given."""
    kernel = find("vit_pool", profile)
    x = np.asarray(x, np.float64)
    d = x.shape[1]
    values = {
        "x": x,
        "positions": positions,
        "cells": cells,
        "bias": standard.get("bias", np.zeros(d)),
        "scale": standard.get("scale", np.ones(d)),
    }
    shape = {"rows": len(cells), "patches": len(x), "axes": 2, "d": d}
    case = make_case(kernel, shape, values, {"root": root})
    return case, case_range(kernel, case)["out"]


def refused(allowed: Any, values: Any) -> int:
    values = np.broadcast_to(np.asarray(values, np.float64), allowed.lo.shape)
    return int(allowed.refused(formats.encode(formats.round_to(values, "bf16"), "bf16")).sum())


def tensors(case: Case) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(bits.copy().view(np.int16)).view(torch.bfloat16)
        if bits.dtype == np.uint16
        else torch.from_numpy(bits.copy().view(np.int32))
        for name, bits in case.operands.items()
    }


def half_an_image() -> tuple[Any, Any]:
    """Eighteen patches, 6 x 3, of 36: patch i holds i + 1, the others zero at (-1, -1)."""
    x = np.zeros((36, 1))
    positions = np.full((36, 2), -1.0)
    for i in range(18):
        x[i], positions[i] = i + 1, (i % 6, i // 6)
    return x, positions


@pytest.mark.parametrize("profile", PROFILES)
def test_the_window_is_three_where_half_of_the_patches_are_padding(profile: str) -> None:
    x, positions = half_an_image()
    _, allowed = pooling(profile, x, positions, grid_cells(4))
    assert refused(allowed, [[8.0], [11.0], [0.0], [0.0]]) == 0
    # a window of sqrt(18 / 4) = 2: sums of four patches by 4, of the first two rows of patches and of the third
    assert refused(allowed, [[4.5], [6.5], [8.5], [6.75]]) == 4
    assert refused(allowed, [[2.0], [5.0], [8.0], [11.0]]) == 4


def test_positions_decide_and_not_the_order() -> None:
    x, positions = half_an_image()
    order = np.random.default_rng(0).permutation(36)
    case, allowed = pooling("mean", x[order], positions[order], grid_cells(4))
    out = vit_pool_torch(**tensors(case), root=1.0, profile="mean")
    assert out.flatten().tolist() == [8.0, 11.0, 0.0, 0.0]
    assert refused(allowed, out.double().numpy()) == 0


def test_padding_is_not_read() -> None:
    x, positions = half_an_image()
    x[18:] = np.nan
    case, allowed = pooling("mean", x, positions, grid_cells(4))
    assert not allowed.nan.any()
    out = vit_pool_torch(**tensors(case), root=1.0, profile="mean")
    assert out.flatten().tolist() == [8.0, 11.0, 0.0, 0.0]


def test_the_mean_is_by_nine_where_patches_are_missing() -> None:
    _, allowed = pooling("mean", [[9.0], [27.0]], [[0, 0], [2, 2]], [[0, 0]])
    assert refused(allowed, 4.0) == 0
    assert refused(allowed, 18.0) == 1


def test_steps_after_the_mean_are_rounded_as_the_profile_says() -> None:
    # 2322 / 9 = 258
    x = np.full((9, 1), 256.0)
    x[:2] = [[264.0], [266.0]]
    args = x, patch_positions(9, 3), [[0, 0]]
    # 258 * 1.5 = 387, a tie that bf16 rounds to 388; times 3: 1161 -> 1160, and 1164, a tie, -> 1168
    for profile, right, other in (("mean", 1160.0, 1168.0), ("each_step", 1168.0, 1160.0)):
        _, allowed = pooling(profile, *args, 1.5, scale=[3.0])
        assert (refused(allowed, right), refused(allowed, other)) == (0, 1)
    # 258 - 1 = 257, a tie that bf16 rounds to 256; times 3: 771 -> 772, and 768
    for profile, right, other in (("mean", 772.0, 768.0), ("each_step", 768.0, 772.0)):
        _, allowed = pooling(profile, *args, bias=[1.0], scale=[3.0])
        assert (refused(allowed, right), refused(allowed, other)) == (0, 1)


def test_transformers_pooler_gives_allowed_rows() -> None:
    module = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
    rng = np.random.default_rng(1)
    x = formats.round_to(rng.standard_normal((36, 64)), "bf16")
    positions = np.full((36, 2), -1.0)
    positions[:18] = patch_positions(18, 3)[rng.permutation(18)]
    bias, scale = (formats.round_to(rng.standard_normal(64), "bf16") for _ in range(2))
    case, allowed = pooling("mean", x, positions, grid_cells(4), 8.0, bias=bias, scale=scale)
    given = tensors(case)

    class Config:
        hidden_size = 64

    padding = (given["positions"] == -1).all(-1)[None]
    rows, there = module.Gemma4VisionPooler(Config())(
        given["x"][None], given["positions"][None].long(), padding, 4
    )
    out = (rows - given["bias"].float()) * given["scale"].float()
    live = there[0].numpy()
    assert live.tolist() == [True, True, False, False]
    got = out[0].to(torch.bfloat16).double().numpy()
    bits = formats.encode(got, "bf16")
    assert not allowed.refused(bits)[live].any()
    assert refused(allowed, -got) > 200


def test_exact_rows_hold_means_beside_no_tie() -> None:
    x, mean = exact_means(np.random.default_rng(2), (64, 16))
    assert (formats.round_to(x, "bf16") == x).all()
    assert (x.sum(0) == 9 * mean).all()
    assert (np.abs(mean) % 4 % 2 == 1).all()
    assert (np.abs(mean) >= 512).all()
    assert (np.abs(mean) < 1024).all()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_shape_of_exact_rows_is_proven(profile: str) -> None:
    found, candidates = exact_cases(find("vit_pool", profile), 0)
    assert len(found) == 4
    assert sum(case.shape["rows"] for case, _ in found) > 0.7 * candidates


def test_a_nan_stays_in_its_cell_and_column() -> None:
    x = np.ones((18, 2))
    x[4, 1] = np.nan
    positions = np.concatenate([patch_positions(9, 3), patch_positions(9, 3) + np.array([3, 0])])
    case, allowed = pooling("mean", x, positions, grid_cells(2))
    out = vit_pool_torch(**tensors(case), root=1.0, profile="mean")
    assert torch.isnan(out).tolist() == [[False, True], [False, False]]
    assert refused(allowed, out.double().numpy()) == 0


@pytest.mark.parametrize(
    ("cells", "grid"), [(1, (1, 1)), (2, (2, 1)), (6, (3, 2)), (280, (20, 14)), (7, (7, 1))]
)
def test_grids_are_wide_and_near_square(cells: int, grid: tuple[int, int]) -> None:
    assert grid_of(cells) == grid
    assert len(grid_cells(cells)) == cells


def test_patches_left_over_are_padding() -> None:
    positions = patch_positions(61, 3)
    assert (positions[54:] == -1).all()
    assert positions[:54].max(0).tolist() == [8, 5]
    sums = nine_sums(
        torch.ones(61, 1), torch.from_numpy(positions), torch.from_numpy(grid_cells(6))
    )
    assert sums.flatten().tolist() == [9.0] * 6
