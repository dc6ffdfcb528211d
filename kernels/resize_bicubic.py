"""An 8-bit image resized in fixed point: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.lazy import lazy
from contract.references.resize_bicubic import BITS
from contract.references.resize_bicubic import resize_bicubic as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

#: Weights lie within +-2: those of a bicubic filter are between -0.1 and 1.
LARGEST = 2 << BITS


def cubic(x: Any, a: float = -0.5) -> Any:
    """Keys' cubic convolution kernel, zero from 2 on."""
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def reach_of(old: int, new: int) -> int:
    """Taps of one new pixel: the filter is stretched where the image becomes smaller."""
    return 2 * math.ceil(2.0 * max(old / new, 1.0)) + 1


def fixed_point(weights: Any) -> Any:
    """Weights that sum to 1 as integers of 22 bits behind the point, rounded half away."""
    scaled = weights / weights.sum(-1, keepdims=True) * (1 << BITS)
    return np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)


def bicubic_table(old: int, new: int) -> tuple[Any, Any]:
    """(first int32 (new,), weights int32 (new, reach)) for an axis of `old` pixels that becomes `new`, as Pillow has them.

    A new pixel's centre is (i + 1/2) old / new; taps lie within 2 old / new of it (2 where the image grows) and are cut
    off at the edges, where the weights left are scaled to a sum of 1.
    """
    if old < 1 or new < 1:
        raise ValueError(f"bicubic_table(old={old}, new={new}); both are at least 1")
    scale = old / new
    stretch = max(scale, 1.0)
    centre = (np.arange(new) + 0.5) * scale
    first = np.maximum((centre - 2.0 * stretch + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + 2.0 * stretch + 0.5).astype(np.int64), old)
    taps = first[:, None] + np.arange(reach_of(old, new))
    weights = cubic((taps - centre[:, None] + 0.5) * (1.0 / stretch))
    weights = np.where(taps < end[:, None], weights, 0.0)
    return first.astype(np.int32), fixed_point(weights)


def first_pass(high: int, wide: int, tall: int, broad: int) -> str:
    """The pass that Pillow begins with since version 13; up to 12 it is always the one across."""
    return "down" if tall < high and high - tall > 2 * (wide - broad) else "across"


def typical_table(rng: Any, shape: tuple[int, ...]) -> Any:
    """Weights of new pixels anywhere between the old ones."""
    new, reach = shape
    stretch = max(1.0, (reach - 1) / 4.0)
    offset = rng.uniform(-0.5, 0.5, (new, 1))
    weights = cubic((np.arange(reach) - (reach - 1) / 2.0 - offset) / stretch)
    return fixed_point(weights + 1e-9)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: images of 0 and 255, whose overshoot is clipped in either pass, and of random codes."""
    size = tuple(shape[dim] for dim in ("rows", "high", "wide", "channels"))
    edges = 255 * rng.integers(0, 2, size)
    any_code = rng.integers(0, 256, size)
    choice = np.arange(shape["rows"]).reshape(-1, 1, 1, 1) % 2
    left, across = bicubic_table(shape["wide"], shape["broad"])
    top, down = bicubic_table(shape["high"], shape["tall"])
    return {
        "image": np.where(choice == 0, edges, any_code),
        "left": left, "across": across, "top": top, "down": down,
    }  # fmt: skip


def sized(high: int, wide: int, tall: int, broad: int, channels: int = 3) -> dict[str, int]:
    """Images of high x wide that become tall x broad, with the taps that a bicubic filter then has."""
    return {
        "high": high, "wide": wide, "tall": tall, "broad": broad, "channels": channels,
        "reach": reach_of(wide, broad), "rise": reach_of(high, tall),
    }  # fmt: skip


def weights(name: str, dims: str) -> Any:
    """A table of weights; they have ends, so that they are never drawn as other numbers."""
    return tensor(name, dims, "int32", typical=typical_table, below=LARGEST, least=-LARGEST)


resize_bicubic = register(
    Contract(
        name="resize_bicubic",
        family="vision",
        summary="an 8-bit image resized with 22-bit weights, across and down",
        reference=reference,
        operands=(
            tensor("image", "rows high wide channels", "uint8"),
            tensor("left", "broad", "int32", below="wide"),
            weights("across", "broad reach"),
            tensor("top", "tall", "int32", below="high"),
            weights("down", "tall rise"),
            output("out", "rows tall broad channels", "uint8"),
        ),
        parameters={"first": ("across", "down")},
        profiles=(
            Profile(
                "fixed_point",
                {"out": "uint8"},
                overflow={"out": "saturate"},
                users="Pillow, and so the processors of SigLIP and PaliGemma",
            ),
        ),
        row_dims=("rows",),
        # SigLIP squashes a photograph to 384 x 384; the sums do not know how many pixels there are, so that a smaller
        # image with the same ratios stands for it
        shapes=(
            {"rows": 1, **sized(160, 120, 96, 96)},
            {"rows": 2, **sized(24, 32, 56, 56)},
        ),
        awkward=({"rows": 1, **sized(1, 1, 3, 2, 1)}, {"rows": 3, **sized(13, 7, 5, 9, 4)}),
        stress=(
            {"rows": 16, **sized(9, 14, 4, 6)},
            {"rows": 16, **sized(5, 6, 8, 11, 1)},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"rows": 8, **sized(20, 15, 9, 12)},
            {"rows": 8, **sized(7, 9, 13, 10)},
            {"rows": 4, **sized(3, 31, 3, 4, 1)},
        ),
        invariant=("batch", "position", "launch", "layout"),
    )
)


def one_pass(pixels: Tensor, first: Tensor, table: Tensor) -> Tensor:
    """(..., n) int32 pixels to (..., len(first)), rounded half up and clipped to 8 bits."""
    n, reach = pixels.shape[-1], table.shape[1]
    places = first.long()[:, None] + torch.arange(reach)
    kept = torch.where(places < n, table, 0)
    total = torch.full((*pixels.shape[:-1], len(first)), 1 << (BITS - 1), dtype=torch.int32)
    for tap in range(reach):
        total += pixels[..., places[:, tap].clamp(max=n - 1)] * kept[:, tap]
    return (total >> BITS).clamp(0, 255)


@implementation("resize_bicubic", name="torch", profile="fixed_point")
def resize_bicubic_torch(
    image: Tensor,
    left: Tensor,
    across: Tensor,
    top: Tensor,
    down: Tensor,
    *,
    first: str = "across",
) -> Tensor:
    """int32 sums, one tap at a time for all new pixels."""
    pixels = image.permute(0, 3, 1, 2).int()
    if first == "down":
        narrow = one_pass(pixels.mT, top, down)
        out = one_pass(narrow.mT, left, across)
    else:
        narrow = one_pass(pixels, left, across)
        out = one_pass(narrow.mT, top, down).mT
    return out.permute(0, 2, 3, 1).to(torch.uint8).contiguous()
