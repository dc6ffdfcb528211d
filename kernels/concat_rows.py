"""Two stretches of rows as one sequence: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.moved_values import any_values
from contract.lazy import lazy
from contract.references.concat_rows import concat_rows as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def sizes(batch: int, head: int, tail: int, d: int) -> dict[str, int]:
    """A shape with the number of its output rows."""
    return {"batch": batch, "head": head, "tail": tail, "rows": head + tail, "d": d}


def unbatched(head: int, tail: int, d: int) -> dict[str, int]:
    """A shape of stress and exact rows, whose batch the framework chooses."""
    return {"head": head, "tail": tail, "rows": head + tail, "d": d}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: values of all kinds."""
    return {
        name: any_values(rng, (shape["batch"], shape[dim], shape["d"]))
        for name, dim in (("first", "head"), ("second", "tail"))
    }


concat_rows = register(
    Contract(
        name="concat_rows",
        family="embedding",
        summary="the rows of one sequence after those of another",
        reference=reference,
        operands=(
            tensor("first", "batch head d"),
            tensor("second", "batch tail d"),
            output("out", "batch rows d"),
        ),
        profiles=(
            Profile("moved", {}, users="PaliGemma: image and prompt", keeps_subnormals=True),
        ),
        row_dims=("batch",),
        rules={"rows = head + tail": lambda s: s["rows"] == s["head"] + s["tail"]},
        # PaliGemma: 1024 image rows and 4 prompt rows of 2048, here at a quarter of the width
        shapes=(sizes(1, 1024, 4, 512), sizes(2, 64, 20, 2048)),
        awkward=(sizes(1, 1, 1, 1), sizes(3, 7, 5, 257), sizes(2, 1, 33, 17)),
        stress=(unbatched(3, 2, 8), unbatched(1, 4, 5)),
        exact=exact_rows,
        exact_shapes=(unbatched(5, 3, 16), unbatched(1, 9, 8)),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("concat_rows", name="torch")
def concat_rows_torch(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """One copy each."""
    return torch.cat([first, second], 1)
