"""A copy of a state at one step: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.moved_values import any_values
from contract.lazy import lazy
from contract.references.snapshot import snapshot as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: values of all kinds, of 24 bits where the format has them; every step of the first and the last among them."""
    rows, steps = shape["rows"], shape["steps"]
    step = rng.integers(0, steps, rows)
    step[:2] = 0, steps - 1
    return {"states": any_values(rng, (rows, steps, shape["d"]), 24), "step": step}


snapshot = register(
    Contract(
        name="snapshot",
        family="embedding",
        summary="the state after one step of each sequence",
        reference=reference,
        operands=(
            tensor("states", "rows steps d"),
            tensor("step", "rows", "int32", below="steps"),
            output("out", "rows d"),
        ),
        profiles=(
            Profile(
                "moved",
                {},
                users="taps of drafters, last kept row of a verified draft",
                keeps_subnormals=True,
            ),
            Profile(
                "float32",
                {},
                {"states": "fp32", "out": "fp32"},
                users="recurrent states of gated delta layers",
                keeps_subnormals=True,
            ),
        ),
        row_dims=("rows",),
        # 17 rows of a verified draft; one head's state of 128 x 128 after each of 8 steps
        shapes=(
            {"rows": 1, "steps": 17, "d": 5376},
            {"rows": 2, "steps": 8, "d": 16_384},
        ),
        awkward=(
            {"rows": 1, "steps": 1, "d": 1},
            {"rows": 5, "steps": 7, "d": 257},
            {"rows": 3, "steps": 33, "d": 17},
        ),
        stress=({"steps": 5, "d": 8}, {"steps": 2, "d": 3}),
        exact=exact_rows,
        exact_shapes=({"steps": 9, "d": 16}, {"steps": 33, "d": 8}),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("snapshot", name="torch", profile=("moved", "float32"))
def snapshot_torch(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """A gather along the steps, which copies."""
    return states[torch.arange(states.shape[0]), step.long()]
