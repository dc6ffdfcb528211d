"""Fixed-point resizing: literal pixels and weights, torch's filter, Pillow's bits where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract.case import find, make_case
from contract.kernels.resize_bicubic import (
    bicubic_table,
    first_pass,
    reach_of,
    resize_bicubic_torch,
)
from contract.ranges import case_range

ONE = 1 << 22


def refused(image: Any, out: Any, first: str = "across") -> int:
    """How many pixels of an image (high, wide, channels) resized to that are not allowed."""
    kernel = find("resize_bicubic", "fixed_point", {"first": first})
    (high, wide, channels), (tall, broad, _) = image.shape, out.shape
    left, across = bicubic_table(wide, broad)
    top, down = bicubic_table(high, tall)
    shape = {
        "rows": 1, "high": high, "wide": wide, "tall": tall, "broad": broad,
        "channels": channels, "reach": across.shape[1], "rise": down.shape[1],
    }  # fmt: skip
    values = {"image": image[None], "left": left, "across": across, "top": top, "down": down}
    allowed = case_range(kernel, make_case(kernel, shape, values))["out"]
    return int(allowed.refused(out[None].astype(np.uint8)).sum())


def resized(image: Any, tall: int, broad: int) -> Any:
    """The torch kernel's image."""
    left, across, top, down = (
        torch.from_numpy(table)
        for old, new in ((image.shape[1], broad), (image.shape[0], tall))
        for table in bicubic_table(old, new)
    )
    given = torch.from_numpy(image.astype(np.uint8))[None]
    return resize_bicubic_torch(given, left, across, top, down)[0].numpy()


def line(*values: int) -> Any:
    return np.array(values, np.uint8).reshape(1, -1, 1)


def test_a_half_is_rounded_up() -> None:
    assert bicubic_table(2, 1)[1][0, :2].tolist() == [ONE // 2, ONE // 2]
    assert refused(line(0, 255), line(128)) == 0
    assert refused(line(0, 255), line(127)) == 1
    assert refused(line(1, 2), line(2)) == 0


def test_a_weight_is_that_of_the_cubic_filter() -> None:
    # twice as large: new pixel 7 lies at 3.75, the centres of the old pixels 2 to 5 at 2.5, 3.5, 4.5, 5.5
    first, weights = bicubic_table(8, 16)
    assert first[7:9].tolist() == [2, 2]
    exact = [-0.0703125, 0.8671875, 0.2265625, -0.0234375, 0.0]
    assert (weights[7] / ONE).tolist() == exact
    assert (weights[8, :4] / ONE).tolist() == exact[3::-1]
    assert weights.sum(1).tolist() == [ONE] * 16


def test_an_edge_overshoots_and_is_clipped() -> None:
    # a step from 0 to 255, twice as wide: below 0 and above 255 beside it
    out = resized(line(0, 0, 0, 255, 255, 255), 1, 12)
    assert out.ravel().tolist() == [0, 0, 0, 0, 0, 52, 203, 255, 255, 255, 255, 255]
    # -0.0703 * 255 = -18 and -0.0234 * 255 = -6 without the clip
    assert refused(line(0, 0, 0, 255, 255, 255), out) == 0
    wrapped = out.copy()
    wrapped[0, 4] = 238
    assert refused(line(0, 0, 0, 255, 255, 255), wrapped) == 1


def test_the_same_size_is_the_same_image() -> None:
    image = np.random.default_rng(9).integers(0, 256, (7, 5, 3))
    assert (resized(image, 7, 5) == image).all()
    assert refused(image, image) == 0


def test_one_colour_stays_one() -> None:
    for value in (0, 1, 128, 254, 255):
        image = np.full((9, 11, 1), value)
        assert (resized(image, 4, 17) == value).all()


@pytest.mark.parametrize("sizes", [(20, 30, 9, 12), (9, 7, 21, 20), (33, 5, 8, 16)])
def test_torch_filters_alike_to_one_level(sizes: tuple[int, int, int, int]) -> None:
    """Its float passes are not rounded between, so that it is one level beside on some pixels of images that nothing
    clips."""
    high, wide, tall, broad = sizes
    image = np.random.default_rng(10).integers(96, 160, (high, wide, 3)).astype(np.uint8)
    given = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    theirs = torch.nn.functional.interpolate(
        given, (tall, broad), mode="bicubic", antialias=True, align_corners=False
    )
    rounded = theirs.round().clamp(0, 255)[0].permute(1, 2, 0).numpy()
    mine = resized(image, tall, broad)
    assert np.abs(mine.astype(int) - rounded).max() <= 1
    assert refused(image, mine) == 0
    assert refused(image, rounded) > 0


# high, wide, tall, broad; the last two are one line to either side of the rule
SIZES = [
    (20, 30, 9, 12), (9, 7, 21, 20), (160, 120, 96, 96), (96, 128, 48, 48), (40, 40, 20, 50),
    (49, 40, 20, 26), (48, 40, 20, 26),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
def test_pillow_gives_these_bits(sizes: tuple[int, int, int, int]) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is an extra: [formats]")
    high, wide, tall, broad = sizes
    image = np.random.default_rng(11).integers(0, 256, (high, wide, 3)).astype(np.uint8)
    theirs = np.asarray(pillow.fromarray(image).resize((broad, tall), pillow.Resampling.BICUBIC))
    since_13 = int(pillow.__version__.partition(".")[0]) >= 13
    order = first_pass(*sizes) if since_13 else "across"
    assert refused(image, theirs, order) == 0
    assert refused(image, theirs, "across" if order == "down" else "down") > 0


def test_a_tall_image_is_narrowed_downwards_first() -> None:
    orders = [first_pass(*sizes) for sizes in SIZES]
    assert orders == ["across", "across", "down", "across", "down", "down", "across"]


def test_the_rounding_between_the_passes_tells_their_order() -> None:
    """0 1 over 0 3: across 1 (a half) and 2 (one and a half), whose mean rounds to 2; down 0 and 2, whose mean is 1."""
    image = np.array([[0, 1], [0, 3]], np.uint8)[..., None]
    for order, right, wrong in (("across", 2, 1), ("down", 1, 2)):
        assert refused(image, np.array([[[right]]]), order) == 0
        assert refused(image, np.array([[[wrong]]]), order) == 1


def test_tables_reach_over_the_filter_and_not_past_the_edge() -> None:
    assert (reach_of(100, 100), reach_of(50, 100), reach_of(100, 50)) == (5, 5, 9)
    for old, new in ((100, 37), (37, 100), (1, 5), (5, 1)):
        first, weights = bicubic_table(old, new)
        taps = first[:, None] + np.arange(weights.shape[1])
        assert weights.shape == (new, reach_of(old, new))
        assert not weights[taps >= old].any()
        assert (np.abs(weights.sum(1) - ONE) <= weights.shape[1]).all()
    with pytest.raises(ValueError, match="new=0"):
        bicubic_table(5, 0)
