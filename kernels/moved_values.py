"""Values whose bits a move must keep, and torch's choice of image rows: for kernels that move rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from contract.kernels.data import full_significands
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: Where rows are few, image rows lie anywhere; a prompt has this many text rows around its one image.
TEXT_ROWS = 4


def any_values(rng: Any, shape: tuple[int, ...], bits: int = 8) -> Any:
    """Values of all kinds: full significands over many binades, one in sixteen a special or a subnormal of bf16."""
    x = full_significands(rng, shape, bits) * np.exp2(rng.integers(-112, 120, shape) - bits)
    specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-133, -(2.0**-130)])
    return np.where(rng.random(shape) < 0.0625, rng.choice(specials, shape), x)


def image_flags(rng: Any, shape: tuple[int, ...]) -> Any:
    """1 where a row belongs to an image: anywhere in short sequences, one stretch among four text rows in long ones."""
    batch, rows = shape
    if rows < 32:
        return rng.integers(0, 2, shape)
    start = rng.integers(0, TEXT_ROWS + 1, (batch, 1))
    place = np.arange(rows)
    return ((place >= start) & (place < start + rows - TEXT_ROWS)).astype(np.float64)


def image_places(is_image: torch.Tensor, images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether a row takes an image row, (batch, rows), and which: its number among the image rows before it."""
    number = is_image.long().cumsum(-1) - 1
    return (is_image != 0) & (number < images), number.clamp(0, images - 1)


def gathered(image: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Row `number` of each sequence's image rows: (batch, rows, d)."""
    return image.gather(1, number[..., None].expand(-1, -1, image.shape[-1]))
