"""Pixels: every code against fractions, other scales refused, transformers' arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import find, make_case
from contract.kernels.pixels import pixels_torch
from contract.ranges import case_range, option_sets

CODES = np.arange(256)
HALF = {"mean": [0.5], "std": [0.5]}
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def refused(profile: str, out: Any, mean: Any, std: Any, codes: Any = None) -> int:
    """How many of the outputs of every code are not allowed, under the option that allows most."""
    kernel = find("pixels", profile)
    channels = len(mean)
    if codes is None:
        codes = np.repeat(CODES[None, :, None], channels, -1)
    shape = {"rows": 1, "d": codes.shape[1], "channels": channels}
    case = make_case(kernel, shape, {"codes": codes, "mean": mean, "std": std})
    fmt = kernel.format(kernel.outputs()[0])
    values = np.broadcast_to(np.asarray(out, np.float64), codes.shape)
    bits = formats.encode(formats.round_to(values, fmt), fmt)
    return min(
        int(case_range(kernel, case, options)["out"].refused(bits).sum())
        for options in option_sets(kernel)
    )


def test_half_and_half_is_twice_the_pixel_less_a_half() -> None:
    third = np.float32(np.float64(85) / 255)
    assert (
        refused(
            "float32",
            [[[np.float32(2) * (third - np.float32(0.5))]]],
            **HALF,
            codes=np.array([[[85]]]),
        )
        == 0
    )
    right = np.float32(2) * ((CODES / 255).astype(np.float32) - np.float32(0.5))
    assert refused("float32", right[None, :, None], **HALF) == 0
    assert refused("once", right[None, :, None], **HALF) == 0
    # -1, 1 and the two codes beside the middle
    assert (right[0], right[255]) == (-1.0, 1.0)
    assert refused("float32", (2 * CODES / 256 - 1)[None, :, None], **HALF) == 255


def test_each_bf16_step_is_rounded() -> None:
    # 129 / 255 = 0.50588 -> 0.5078125 (steps of 2^-8); less 1/2: 0.0078125; twice: 0.015625; in fp32 0.01176 -> 0.01177979
    code = np.array([[[129]]])
    exact = float(formats.round_to(np.array(2 * (129 / 255 - 0.5)), "bf16"))
    assert exact == 0.01177978515625
    for profile, right, other in (("each_step", 0.015625, exact), ("once", exact, 0.015625)):
        assert refused(profile, [[[right]]], **HALF, codes=code) == 0
        assert refused(profile, [[[other]]], **HALF, codes=code) == 1


def test_the_quotient_is_the_fraction_rounded_once() -> None:
    """And a product with 1 / 255 in fp64 gives it, too; one with the fp32 number does not."""
    quotients = (CODES.astype(np.float32) / np.float32(255)).astype(np.float64)
    for code, got in enumerate(quotients):
        apart = abs(Fraction(got) - Fraction(code, 255))
        assert apart <= Fraction(float(np.spacing(np.float32(got)))) / 2
    assert ((CODES * (1 / 255)).astype(np.float32) == quotients).all()
    assert float(np.float32(1 / 255)) == float.fromhex("0x1.010102p-8")
    products = CODES.astype(np.float32) * np.float32(1 / 255)
    assert 20 < (products != quotients).sum() < 256
    assert refused("float32", quotients[None, :, None], [0.0], [1.0]) == 0
    assert (
        refused("float32", products[None, :, None], [0.0], [1.0]) == (products != quotients).sum()
    )


def test_channels_have_their_own_mean_and_std() -> None:
    right = (CODES[:, None] / 255 - np.array(IMAGENET["mean"])) / np.array(IMAGENET["std"])
    assert refused("once", right[None], **IMAGENET) < 8
    assert refused("once", right[None, :, ::-1], **IMAGENET) > 500


def test_transformers_arithmetic_is_allowed() -> None:
    transforms = pytest.importorskip("transformers.image_transforms")
    image = np.repeat(CODES[None, :, None], 3, -1).astype(np.uint8)
    scaled = transforms.rescale(image, 1 / 255)
    theirs = transforms.normalize(scaled, **IMAGENET, input_data_format="channels_last")
    assert theirs.dtype == np.float32
    assert refused("float32", theirs, **IMAGENET) == 0
    factor = 1.0 / (1 / 255)
    mean, std = (torch.tensor(IMAGENET[name]) * factor for name in ("mean", "std"))
    folded = torch.from_numpy(image).float().sub(mean).div(std)
    assert refused("folded", folded.numpy(), **IMAGENET) == 0
    assert refused("folded", theirs, **IMAGENET) > 50
    assert refused("float32", folded.numpy(), **IMAGENET) > 50


@pytest.mark.parametrize("profile", ["float32", "folded", "once", "each_step"])
@pytest.mark.parametrize("given", [HALF, IMAGENET], ids=["half", "imagenet"])
def test_the_torch_kernel_is_allowed_at_every_code(profile: str, given: Any) -> None:
    mean, std = (torch.tensor(given[name]) for name in ("mean", "std"))
    codes = torch.arange(256, dtype=torch.uint8)[None, :, None].repeat(1, 1, len(mean))
    out = pixels_torch(codes, mean, std, profile=profile).double().numpy()
    assert refused(profile, out, **given) == 0
    assert refused(profile, -out, **given) > 0.9 * out.size
