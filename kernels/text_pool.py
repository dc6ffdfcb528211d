"""The row that stands for a text: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.moved_values import any_values
from contract.lazy import lazy
from contract.references.text_pool import text_pool as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: values of all kinds."""
    return {"x": any_values(rng, (shape["rows"], shape["tokens"], shape["d"]))}


text_pool = register(
    Contract(
        name="text_pool",
        family="embedding",
        summary="the last token's row of each text",
        reference=reference,
        operands=(tensor("x", "rows tokens d"), output("out", "rows d")),
        profiles=(Profile("moved", {}, users="SigLIP's text tower", keeps_subnormals=True),),
        row_dims=("rows",),
        shapes=({"rows": 1, "tokens": 64, "d": 1152}, {"rows": 4, "tokens": 64, "d": 1152}),
        awkward=(
            {"rows": 1, "tokens": 1, "d": 1},
            {"rows": 3, "tokens": 5, "d": 257},
            {"rows": 17, "tokens": 2, "d": 33},
        ),
        stress=({"tokens": 3, "d": 8}, {"tokens": 5, "d": 5}),
        exact=exact_rows,
        exact_shapes=({"tokens": 7, "d": 16}, {"tokens": 64, "d": 4}),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("text_pool", name="torch")
def text_pool_torch(x: torch.Tensor) -> torch.Tensor:
    """A copy of the last rows."""
    return x[:, -1].clone()
