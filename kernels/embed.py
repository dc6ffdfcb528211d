"""Embedding rows from a bf16 table: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.embed import embed as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def roots(rng: Any, shape: tuple[int, ...]) -> Any:
    """Roots of widths that are no bf16 numbers: 2048 (PaliGemma), 3840 and 5376 (Gemma 4)."""
    return np.sqrt(rng.choice((2048.0, 3840.0, 5376.0), shape))


def every_id(rng: Any, shape: Mapping[str, int]) -> Any:
    """Ids in any order, each as often as any other: the first and the last row are among them."""
    return np.resize(rng.permutation(shape["vocab"]), shape["rows"]).astype(np.float64)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Products of two bf16 numbers are exact; the factor has bits that a bf16 one has not."""
    table = (shape["vocab"], shape["d"])
    values = full_significands(rng, table) * np.exp2(rng.integers(-12, 4, table))
    values[0, :2] = (0.0, -0.0)
    if parameters["scaled"] == "no":
        # a move keeps subnormals; arithmetic may flush them
        values[-1, :2] = (2.0**-130, -(2.0**-133))
    return {
        "ids": every_id(rng, shape),
        "table": values,
        "scale": np.asarray(float(rng.integers(1 << 12, 1 << 13)) / 128.0),
    }


embed = register(
    Contract(
        name="embed",
        family="embedding",
        summary="rows of a bf16 table, times the embedding scale or as they are",
        reference=reference,
        operands=(
            tensor("ids", "rows", "int32", below="vocab"),
            tensor("table", "vocab d"),
            tensor("scale", "", "fp32", typical=roots, finite=True, when={"scaled": ("yes",)}),
            output("out", "rows d"),
        ),
        parameters={"scaled": ("yes", "no")},
        profiles=(
            Profile(
                "once",
                {"scale": "bf16", "out": "bf16"},
                users="Gemma in transformers and MLX; unscaled Llama, Qwen",
                vacuous={"out,scaled=no": "a bf16 row is stored in bf16"},
            ),
        ),
        row_dims=("rows",),
        # vocabularies (262,144 rows) are cut: a table this tall shows every index that one row shows
        shapes=(
            {"rows": 16, "vocab": 300, "d": 2048},
            {"rows": 128, "vocab": 40, "d": 3840},
            {"rows": 1, "vocab": 64, "d": 5376},
        ),
        awkward=({"rows": 3, "vocab": 1, "d": 1}, {"rows": 17, "vocab": 5, "d": 257}),
        stress=({"vocab": 13, "d": 64}, {"vocab": 13, "d": 5}, {"vocab": 2, "d": 129}),
        exact=exact_rows,
        exact_shapes=({"vocab": 9, "d": 64}, {"vocab": 33, "d": 257}),
    )
)


@implementation("embed", name="torch", profile="once")
def embed_torch(
    ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """A lookup, and one product in the table's format."""
    row = table.index_select(0, ids)
    return row if scale is None else row * scale.to(row.dtype)
