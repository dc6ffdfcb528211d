"""Planted resizers: other roundings, orders, edges and widths, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.resize_bicubic import one_pass, resize_bicubic_torch
from contract.lazy import lazy
from contract.references.resize_bicubic import BITS

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


#: The faults of one order are those of the other; `across_before_down` tells them apart.
ACROSS: dict[str, Any] = {"first": "across"}


def sums(pixels: Tensor, first: Tensor, table: Tensor) -> Tensor:
    """(..., n) pixels to (..., len(first)) sums of 22 bits behind the point, in float64 and exact."""
    n = pixels.shape[-1]
    places = first.long()[:, None] + torch.arange(table.shape[1])
    dense = torch.zeros(n, len(first), dtype=torch.float64)
    live = places < n
    columns = torch.arange(len(first))[:, None].expand(places.shape)
    dense[places[live], columns[live]] = table[live].double()
    return pixels.double() @ dense


def twice(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor, between: float = 1.0
) -> Tensor:
    """Both passes in real numbers; the first is rounded to multiples of `between`, or to none at 0."""
    wide = sums(image.permute(0, 1, 3, 2), left, across) / 2.0**BITS
    if between:
        wide = ((wide / between + 0.5).floor() * between).clamp(0, 255)
    out = sums(wide.permute(0, 3, 2, 1), top, down) / 2.0**BITS
    return (out + 0.5).floor().clamp(0, 255).permute(0, 3, 1, 2).to(torch.uint8).contiguous()


# -- rounding


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def first_pass_not_rounded(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """Real numbers between the passes: torch's float resize."""
    return twice(image, left, across, top, down, 0.0)


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def first_pass_to_a_quarter(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """Two bits more are kept between the passes."""
    return twice(image, left, across, top, down, 0.25)


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def truncated(image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor) -> Tensor:
    """The half is not added before the shift."""
    wide = (sums(image.permute(0, 1, 3, 2), left, across) / 2.0**BITS).floor().clamp(0, 255)
    out = (sums(wide.permute(0, 3, 2, 1), top, down) / 2.0**BITS).floor().clamp(0, 255)
    return out.permute(0, 3, 1, 2).to(torch.uint8).contiguous()


@red("resize_bicubic", profile="fixed_point", gate="exact", **ACROSS)
def wraps(image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor) -> Tensor:
    """What lies beyond 0 or 255 keeps its low eight bits."""
    wide = one_pass(image.permute(0, 1, 3, 2).int(), left, across)
    total = sums(wide.permute(0, 3, 2, 1), top, down).long() + (1 << (BITS - 1))
    return (total >> BITS).permute(0, 3, 1, 2).to(torch.uint8).contiguous()


@red("resize_bicubic", profile="fixed_point", gate="exact", **ACROSS)
def clipped_at_the_end_alone(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """The first pass is rounded to whole numbers below 0 and above 255, too."""
    wide = (sums(image.permute(0, 1, 3, 2), left, across) / 2.0**BITS + 0.5).floor()
    out = (sums(wide.permute(0, 3, 2, 1), top, down) / 2.0**BITS + 0.5).floor().clamp(0, 255)
    return out.permute(0, 3, 1, 2).to(torch.uint8).contiguous()


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def weights_of_eight_bits(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """The weights lose their last 14 bits."""
    coarse = [(table >> (BITS - 8)) << (BITS - 8) for table in (across, down)]
    return resize_bicubic_torch(image, left, coarse[0], top, coarse[1])


# -- order and edges


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def down_before_across(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """The other pass comes first; without the rounding between them it would not matter."""
    return resize_bicubic_torch(image, left, across, top, down, first="down")


@red("resize_bicubic", profile="fixed_point", gate="shapes", first="down")
def across_before_down(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """Pillow up to 12, where 13 begins with the pass down."""
    return resize_bicubic_torch(image, left, across, top, down)


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def edge_repeated(image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor) -> Tensor:
    """Taps past the edge read the last pixel."""
    last = image[:, -1:].expand(-1, down.shape[1], -1, -1)
    longer = torch.cat([image, last], 1)
    side = longer[:, :, -1:].expand(-1, -1, across.shape[1], -1)
    return resize_bicubic_torch(torch.cat([longer, side], 2), left, across, top, down)


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def one_pixel_further(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """Every new column begins at the pixel after its first."""
    moved = (left + 1).clamp(max=image.shape[2] - 1)
    return resize_bicubic_torch(image, moved, across, top, down)


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def last_tap_dropped(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor
) -> Tensor:
    """An even number of taps is taken."""
    return resize_bicubic_torch(image, left, across[:, :-2], top, down[:, :-2])


@red("resize_bicubic", profile="fixed_point", gate="shapes", **ACROSS)
def codes_signed(image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor) -> Tensor:
    """Codes from 128 on are read as negative numbers."""
    wide = one_pass(image.view(torch.int8).permute(0, 1, 3, 2).int(), left, across)
    out = one_pass(wide.permute(0, 3, 2, 1), top, down)
    return out.permute(0, 3, 1, 2).to(torch.uint8).contiguous()


# -- legal variants


@green("resize_bicubic", profile="fixed_point", **ACROSS)
def in_float64(image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor) -> Tensor:
    """Exact sums in float64, in any order."""
    return twice(image, left, across, top, down)


@green("resize_bicubic", profile="fixed_point")
def channel_by_channel(
    image: Tensor, left: Tensor, across: Tensor, top: Tensor, down: Tensor, *, first: str
) -> Tensor:
    """One colour at a time."""
    parts = [
        resize_bicubic_torch(c, left, across, top, down, first=first)
        for c in image.split(1, dim=-1)
    ]
    return torch.cat(parts, -1)
