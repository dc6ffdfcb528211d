"""A vision tap added to image rows: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.moved_values import any_values, gathered, image_flags, image_places
from contract.lazy import lazy
from contract.references.deepstack_add import deepstack_add as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Text rows hold values of all kinds, image rows integers whose sums need up to 13 bits, ties among them."""
    batch, rows, images, d = (shape[k] for k in ("batch", "rows", "images", "d"))
    flags = image_flags(rng, (batch, rows))
    flags[0], flags[1] = 1, 0
    stream = full_significands(rng, (batch, rows, d))
    return {
        "h": np.where(flags[..., None] == 1, stream, any_values(rng, (batch, rows, d))),
        "tap": full_significands(rng, (batch, images, d))
        * np.exp2(rng.integers(-5, 5, (batch, images, 1))),
        "is_image": flags,
    }


deepstack_add = register(
    Contract(
        name="deepstack_add",
        family="activations",
        summary="a vision tap added to the image rows of the stream",
        reference=reference,
        operands=(
            tensor("h", "batch rows d"),
            tensor("tap", "batch images d"),
            tensor("is_image", "batch rows", "uint8", below=2, typical=image_flags),
            output("out", "batch rows d", in_place_of="h"),
        ),
        profiles=(
            Profile(
                "once",
                {"out": "bf16"},
                users="Qwen3-VL",
                vacuous={"drop-out": "what is stored as bf16 is rounded there"},
            ),
        ),
        row_dims=("batch",),
        shapes=(
            {"batch": 1, "rows": 68, "images": 64, "d": 2048},
            {"batch": 2, "rows": 132, "images": 128, "d": 512},
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
    )
)


@implementation("deepstack_add", name="torch")
def deepstack_add_torch(h: torch.Tensor, tap: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """The k-th tap row is added where the k-th image id is."""
    taken, number = image_places(is_image, tap.shape[1])
    return torch.where(taken[..., None], h + gathered(tap, number), h)
