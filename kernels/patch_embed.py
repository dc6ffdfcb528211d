"""Patches to the rows of a vision tower: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.patch_embed import patch_embed as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

BIASED, PLACED = {"adds": ("both", "bias")}, {"adds": ("both", "position")}
#: Columns of an exact row that are not zero: sums of their products' magnitudes stay below 2^24.
LIVE_PAIRS = 96
TAIL = 32


def typical_weight(rng: Any, shape: tuple[int, ...]) -> Any:
    """Weights that keep the size of a patch of a few hundred values."""
    return rng.standard_normal(shape) / 16.0


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: integers of 8 bits whose products run up to 2^22 and cancel, and a few small ones that stay.

    Columns come in pairs with opposite weights and equal patches, in any place; a row uses some of the pairs, each pair
    is used by some row. The tail of up to 32 columns puts the sum in the hundreds, where odd values above 256 are ties.
    """
    rows, n, k = shape["rows"], shape["n"], shape["k"]
    pairs = max(0, k - TAIL) // 2
    order = rng.permutation(k)
    left, right, tail = order[:pairs], order[pairs : 2 * pairs], order[2 * pairs :]
    x, w = np.zeros((rows, k)), np.zeros((n, k))
    # of one sign, so that the running sum of a kernel that takes the columns in order grows before it falls
    patch, weight = (np.abs(full_significands(rng, (size, pairs))) for size in (rows, n))
    live = np.argsort(rng.random((rows, pairs)), axis=-1) < LIVE_PAIRS
    x[:, left] = x[:, right] = np.where(live, patch, 0.0)
    w[:, left], w[:, right] = weight, -weight
    x[:, tail] = 2 * rng.integers(-16, 16, (rows, len(tail))) + 1
    w[:, tail] = rng.integers(1, 8, (n, len(tail))) * rng.choice([-1.0, 1.0], (n, len(tail)))
    return {
        "patches": x,
        "weight": w,
        "offset": full_significands(rng, (n,)),
        "table": full_significands(rng, (shape["entries"], n)),
        "places": rng.integers(0, shape["entries"], (rows, shape["axes"])),
    }


def sized(rows: int, k: int, n: int, entries: int, axes: int = 1) -> dict[str, int]:
    """One shape."""
    return {"rows": rows, "k": k, "n": n, "entries": entries, "axes": axes}


def inner(k: int, n: int, entries: int, axes: int = 1) -> dict[str, int]:
    """A shape without its rows."""
    return {"k": k, "n": n, "entries": entries, "axes": axes}


patch_embed = register(
    Contract(
        name="patch_embed",
        family="vision",
        summary="a linear map of patches with its bias and learned positions",
        reference=reference,
        operands=(
            tensor("patches", "rows k"),
            tensor("weight", "n k", typical=typical_weight),
            tensor("offset", "n", when=BIASED),
            tensor("table", "entries n", when=PLACED),
            tensor("places", "rows axes", "int32", below="entries", when=PLACED),
            output("out", "rows n"),
        ),
        parameters={"adds": ("both", "position", "bias")},
        options={"bias": ("inside", "outside")},
        profiles=(
            Profile(
                "inside",
                # where the bias is inside there is no product of its own to round
                {"product": "bf16", "y": "bf16", "position": "bf16", "out": "bf16"},
                options={"bias": "inside"},
                users="SigLIP, Gemma 4, Qwen3-VL in transformers",
                vacuous={"bias,adds=position": "without a bias there is none outside"},
            ),
            Profile(
                "outside",
                {"product": "bf16", "y": "bf16", "position": "bf16", "out": "bf16"},
                options={"bias": "outside"},
                when={"adds": ("both",)},
                users="a product and an addition as two operators",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # SigLIP So400m: patches of 588; Gemma 4: 768. Their 1152 columns do not depend on each other and are too dear to
        # audit: a tile stands for them.
        shapes=(sized(16, 588, 64, 27), sized(16, 768, 32, 16, 2), sized(8, 588, 96, 27)),
        awkward=(sized(1, 12, 5, 3), sized(3, 27, 1, 2, 2), sized(17, 75, 33, 20)),
        stress=(inner(12, 64, 4), inner(48, 33, 3, 2), inner(3, 96, 2), inner(147, 16, 2, 2)),
        exact=exact_rows,
        exact_shapes=(
            sized(12, 588, 8, 9),
            sized(32, 48, 8, 5, 2),
            sized(32, 12, 8, 3),
            sized(8, 768, 8, 7, 2),
        ),
        freedoms={"dot": "any order of the products and the bias: a proof, Higham section 4.2"},
        rules={"axes is 1 or 2": lambda s: s["axes"] in (1, 2)},
    )
)


def finished(y: Tensor, table: Tensor | None = None, places: Tensor | None = None) -> Tensor:
    """The rounded y with its position, if any."""
    if table is None or places is None:
        return y
    position = table[places[:, 0].long()]
    if places.shape[1] == 2:
        position = position + table[places[:, 1].long()]
    return y + position


@implementation("patch_embed", name="torch", profile=("inside", "outside"))
def patch_embed_torch(
    patches: Tensor,
    weight: Tensor,
    offset: Tensor | None = None,
    table: Tensor | None = None,
    places: Tensor | None = None,
    *,
    profile: str,
) -> Tensor:
    """An fp32 product; the bias joins it before or after its rounding."""
    y = patches.float() @ weight.float().T
    if offset is not None and profile == "inside":
        y = y + offset.float()
    y = y.to(patches.dtype)
    if offset is not None and profile == "outside":
        y = y + offset
    return finished(y, table, places)
