"""Patches: literal orders, the ignored border, and other libraries' cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import find, make_case
from contract.kernels.patchify import patchify_torch
from contract.ranges import case_range

CUTS = [
    (grid, vector)
    for grid in ("raster", "blocks")
    for vector in ("row_col_channel", "channel_row_col")
]


def refused(image: Any, out: Any, patch: int, grid: str, vector: str) -> int:
    """How many values of these patches of one image (channels, high, wide) are not allowed."""
    kernel = find("patchify", "moved", {"grid": grid, "vector": vector})
    channels, high, wide = image.shape
    shape = {
        "rows": 1, "channels": channels, "high": high, "wide": wide,
        "patches": len(out), "k": channels * patch * patch,
    }  # fmt: skip
    case = make_case(kernel, shape, {"image": image[None]}, {"patch": patch})
    allowed = case_range(kernel, case)["out"]
    return int(allowed.refused(formats.encode(np.asarray(out, np.float64)[None], "fp32")).sum())


def cut(image: Any, patch: int, grid: str, vector: str) -> Any:
    """The torch kernel's patches of one image."""
    given = torch.from_numpy(np.asarray(image, np.float32))[None]
    return patchify_torch(given, patch=float(patch), grid=grid, vector=vector)[0].double().numpy()


#: channels of 8 x 8 pixels that count up: channel 1 begins with 64, channel 2 with 128
COUNTING = np.arange(3.0 * 8 * 8).reshape(3, 8, 8)


def counted(grid: str, vector: str) -> Any:
    """Patches of 2 x 2 pixels of that image, place by place."""
    blocks = [(r, c) for br in (0, 2) for bc in (0, 2) for r in (br, br + 1) for c in (bc, bc + 1)]
    raster = [(r, c) for r in range(4) for c in range(4)]
    rows = []
    for r, c in blocks if grid == "blocks" else raster:
        pixel = [(y, x) for y in (2 * r, 2 * r + 1) for x in (2 * c, 2 * c + 1)]
        if vector == "row_col_channel":
            rows.append([64 * ch + 8 * y + x for y, x in pixel for ch in range(3)])
        else:
            rows.append([64 * ch + 8 * y + x for ch in range(3) for y, x in pixel])
    return np.array(rows)


def test_blocks_of_pixels_with_the_channel_last() -> None:
    right = counted("blocks", "row_col_channel")
    assert right[0].tolist() == [0, 64, 128, 1, 65, 129, 8, 72, 136, 9, 73, 137]
    # the third patch lies below the first
    assert right[2, 0] == 16
    assert refused(COUNTING, right, 2, "blocks", "row_col_channel") == 0
    for other in (("raster", "row_col_channel"), ("blocks", "channel_row_col")):
        assert refused(COUNTING, counted(*other), 2, "blocks", "row_col_channel") > 50


@pytest.mark.parametrize(("grid", "vector"), CUTS)
def test_every_order_is_told_from_the_others(grid: str, vector: str) -> None:
    for one in CUTS:
        assert (refused(COUNTING, counted(*one), 2, grid, vector) == 0) == (one == (grid, vector))
    assert (cut(COUNTING, 2, grid, vector) == counted(grid, vector)).all()


def test_the_last_six_rows_and_columns_of_384_pixels_are_ignored() -> None:
    image = np.arange(384.0 * 384).reshape(1, 384, 384)
    out = cut(image, 14, "raster", "row_col_channel")
    assert out.shape == (729, 196)
    assert out[-1, -1] == 384 * 377 + 377
    assert refused(image, out, 14, "raster", "row_col_channel") == 0
    centred = cut(image[:, 3:381, 3:381], 14, "raster", "row_col_channel")
    assert refused(image, centred, 14, "raster", "row_col_channel") == out.size
    last = cut(image[:, 6:, 6:], 14, "raster", "row_col_channel")
    assert refused(image, last, 14, "raster", "row_col_channel") == out.size


def test_a_strided_convolution_reads_the_same_patches() -> None:
    rng = np.random.default_rng(4)
    image = rng.integers(-8, 8, (3, 45, 31)).astype(np.float64)
    weight = rng.integers(-8, 8, (5, 3, 14, 14)).astype(np.float64)
    convolved = torch.nn.functional.conv2d(
        torch.from_numpy(image)[None], torch.from_numpy(weight), stride=14
    )
    patches = cut(image, 14, "raster", "channel_row_col")
    product = patches @ weight.reshape(5, -1).T
    assert (product.T.reshape(1, 5, 3, 2) == convolved.numpy()).all()


def test_transformers_cuts_the_same_patches() -> None:
    module = pytest.importorskip("transformers.models.gemma4.image_processing_gemma4")
    image = np.random.default_rng(5).standard_normal((3, 48, 96)).astype(np.float32)
    theirs = module.convert_image_to_patches(torch.from_numpy(image), 16)
    assert (cut(image, 16, "raster", "row_col_channel") == theirs.double().numpy()).all()
    assert refused(image, theirs.numpy(), 16, "raster", "row_col_channel") == 0


def test_a_block_at_an_odd_edge_is_smaller() -> None:
    image = np.arange(9.0).reshape(1, 3, 3)
    out = cut(image, 1, "blocks", "row_col_channel")
    assert out.ravel().tolist() == [0, 1, 3, 4, 2, 5, 6, 7, 8]
    assert refused(image, out, 1, "blocks", "row_col_channel") == 0


@pytest.mark.parametrize("patch", [0.0, -14.0, 14.5, float("nan"), float("inf")])
def test_a_side_is_a_whole_number_of_pixels(patch: float) -> None:
    with pytest.raises(ValueError, match=r"patch .*; a patch's side is a whole number"):
        patchify_torch(
            torch.zeros(1, 3, 28, 28), patch=patch, grid="raster", vector="row_col_channel"
        )
