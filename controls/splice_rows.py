"""Planted splices: scaled, shifted, stale and misplaced image rows, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.moved_values import gathered, image_places
from contract.kernels.splice_rows import splice_rows_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("splice_rows", profile="moved", gate="shapes")
def scaled_image_rows(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Image rows are multiplied by sqrt(d), as text rows are."""
    return splice_rows_torch(h, image * image.shape[-1] ** 0.5, is_image)


@red("splice_rows", profile="moved", gate="shapes")
def divided_image_rows(
    h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor
) -> torch.Tensor:
    """Image rows are divided by sqrt(d), as where the whole sequence is scaled afterwards."""
    return splice_rows_torch(h, image / image.shape[-1] ** 0.5, is_image)


@red("splice_rows", profile="moved", gate="exact")
def next_image_row(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The image's first row is skipped: k counts from 1."""
    taken, number = image_places(is_image, image.shape[1])
    after = gathered(image, (number + 1).clamp(max=image.shape[1] - 1))
    return torch.where(taken[..., None], after, h)


@red("splice_rows", profile="moved", gate="exact")
def one_place_later(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The image starts one row after its first id."""
    return splice_rows_torch(h, image, is_image.roll(1, -1))


@red("splice_rows", profile="moved", gate="exact")
def last_row_missing(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The last image row is not written: the text row stays."""
    taken, number = image_places(is_image, image.shape[1])
    return torch.where(
        (taken & (number < image.shape[1] - 1))[..., None], gathered(image, number), h
    )


@red("splice_rows", profile="moved", gate="exact")
def stale_rows(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The rows of the image ids' own embeddings stay."""
    return h.clone()


@red("splice_rows", profile="moved", gate="exact")
def by_position(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Row i takes image row i, not the row of its number among the image ids."""
    taken, _ = image_places(is_image, image.shape[1])
    place = torch.arange(h.shape[1]).clamp(max=image.shape[1] - 1).expand(h.shape[0], -1)
    return torch.where(taken[..., None], gathered(image, place), h)


@red("splice_rows", profile="moved", gate="exact")
def numbered_through_the_batch(
    h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor
) -> torch.Tensor:
    """Image ids are numbered through the whole batch: sequences with fewer or more of them shift the next ones."""
    flat = splice_rows_torch(
        h.flatten(0, 1)[None], image.flatten(0, 1)[None], is_image.reshape(1, -1)
    )
    return flat.reshape(h.shape)


@red("splice_rows", profile="moved", gate="exact")
def first_image_for_all(
    h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor
) -> torch.Tensor:
    """Every sequence takes the first one's image."""
    return splice_rows_torch(h, image[:1].expand_as(image), is_image)


@red("splice_rows", profile="moved", gate="exact")
def last_row_repeated(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Ids past the last image row take that row again."""
    _, number = image_places(is_image, image.shape[1])
    return torch.where((is_image != 0)[..., None], gathered(image, number), h)


@red("splice_rows", profile="moved", gate="exact")
def added_to_the_text(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Image rows are added to the rows of the image ids."""
    taken, number = image_places(is_image, image.shape[1])
    return torch.where(taken[..., None], h + gathered(image, number), h)


@green("splice_rows", profile="moved")
def row_by_row(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """One row is copied after the other."""
    out = h.clone()
    for sequence, flags in enumerate(is_image.tolist()):
        number = 0
        for place, flag in enumerate(flags):
            if flag and number < image.shape[1]:
                out[sequence, place] = image[sequence, number]
                number += 1
    return out


@green("splice_rows", profile="moved")
def by_scatter(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """torch's masked_scatter, sequence by sequence."""
    taken, _ = image_places(is_image, image.shape[1])
    rows = [a.masked_scatter(t[:, None], b) for a, t, b in zip(h, taken, image, strict=True)]
    return torch.stack(rows)
