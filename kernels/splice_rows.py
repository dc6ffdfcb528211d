"""Image rows in place of the rows of image ids: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.moved_values import any_values, gathered, image_flags, image_places
from contract.lazy import lazy
from contract.references.splice_rows import splice_rows as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: values of all kinds; sequences with too few and with too many image ids."""
    batch, rows = shape["batch"], shape["rows"]
    flags = image_flags(rng, (batch, rows))
    flags[0], flags[1] = 1, 0
    return {
        "h": any_values(rng, (batch, rows, shape["d"])),
        "image": any_values(rng, (batch, shape["images"], shape["d"])),
        "is_image": flags,
    }


splice_rows = register(
    Contract(
        name="splice_rows",
        family="embedding",
        summary="image rows take the places of image ids, unscaled",
        reference=reference,
        operands=(
            tensor("h", "batch rows d"),
            tensor("image", "batch images d"),
            tensor("is_image", "batch rows", "uint8", below=2, typical=image_flags),
            output("out", "batch rows d", in_place_of="h"),
        ),
        profiles=(
            Profile("moved", {}, users="PaliGemma, Qwen3-VL, Gemma 4", keeps_subnormals=True),
        ),
        row_dims=("batch",),
        # Qwen3-VL: 64 image rows of 2048; PaliGemma: 1024 of 2048, here at a quarter of the width
        shapes=(
            {"batch": 1, "rows": 68, "images": 64, "d": 2048},
            {"batch": 1, "rows": 1028, "images": 1024, "d": 512},
        ),
        awkward=(
            {"batch": 1, "rows": 1, "images": 1, "d": 1},
            {"batch": 3, "rows": 7, "images": 4, "d": 257},
            {"batch": 2, "rows": 40, "images": 33, "d": 17},
        ),
        stress=({"rows": 6, "images": 3, "d": 8}, {"rows": 3, "images": 2, "d": 5}),
        exact=exact_rows,
        exact_shapes=(
            {"rows": 9, "images": 4, "d": 16},
            {"rows": 40, "images": 36, "d": 8, "batch": 16},
        ),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("splice_rows", name="torch")
def splice_rows_torch(h: torch.Tensor, image: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The k-th image row goes where the k-th image id is."""
    taken, number = image_places(is_image, image.shape[1])
    return torch.where(taken[..., None], gathered(image, number), h)


def flags_of(ids: torch.Tensor, image_id: int, images: int) -> torch.Tensor:
    """`is_image` of token ids, (batch, rows), for sequences with this many image rows each.

    Raises:
        ValueError: a sequence has another number of image ids than of image rows.
    """
    flags = ids == image_id
    counts = flags.sum(-1)
    if bool((counts != images).any()):
        row = int((counts != images).int().argmax())
        raise ValueError(
            f"sequence {row} has {int(counts[row])} ids {image_id} and {images} image rows; they must be as many"
        )
    return flags.to(torch.uint8)
