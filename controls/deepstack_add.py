"""Planted taps: added elsewhere, shifted, stale or rounded otherwise, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.deepstack_add import deepstack_add_torch
from contract.kernels.moved_values import gathered, image_places
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("deepstack_add", profile="once", gate="exact")
def no_tap(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The tap is left out."""
    return h.clone()


@red("deepstack_add", profile="once", gate="exact")
def spliced(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The tap takes the place of the stream's row."""
    taken, number = image_places(is_image, tap.shape[1])
    return torch.where(taken[..., None], gathered(tap, number), h)


@red("deepstack_add", profile="once", gate="exact")
def every_row(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Text rows, and ids past the last tap row, are added to as well: the nearest tap row is."""
    _, number = image_places(is_image, tap.shape[1])
    return h + gathered(tap, number)


@red("deepstack_add", profile="once", gate="exact")
def by_position(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Tap row i goes to row i: right only where the image comes first."""
    taken, _ = image_places(is_image, tap.shape[1])
    place = torch.arange(h.shape[1]).clamp(max=tap.shape[1] - 1).expand(h.shape[0], -1)
    return torch.where(taken[..., None], h + gathered(tap, place), h)


@red("deepstack_add", profile="once", gate="exact")
def next_tap_row(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """k counts from 1."""
    return deepstack_add_torch(h, tap.roll(-1, 1), is_image)


@red("deepstack_add", profile="once", gate="exact")
def one_place_later(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The image starts one row after its first id."""
    return deepstack_add_torch(h, tap, is_image.roll(1, -1))


@red("deepstack_add", profile="once", gate="exact")
def twice(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The tap is added after two layers."""
    return deepstack_add_torch(deepstack_add_torch(h, tap, is_image), tap, is_image)


@red("deepstack_add", profile="once", gate="exact")
def first_image_for_all(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Every sequence takes the first one's tap."""
    return deepstack_add_torch(h, tap[:1].expand_as(tap), is_image)


@red("deepstack_add", profile="once", gate="exact")
def truncated(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The store cuts the low half of the fp32 word off."""
    wide = deepstack_add_torch(h.float(), tap.float(), is_image)
    cut = (wide.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(wide.isnan(), wide.bfloat16(), cut)


@green("deepstack_add", profile="once")
def in_float64(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The sum is kept wider, then rounded through fp32."""
    return deepstack_add_torch(h.double(), tap.double(), is_image).float().bfloat16()


@green("deepstack_add", profile="once")
def zeros_elsewhere(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """-0 is added to the other rows, which keeps all their bits."""
    taken, number = image_places(is_image, tap.shape[1])
    return h + torch.where(taken[..., None], gathered(tap, number), -0.0)
