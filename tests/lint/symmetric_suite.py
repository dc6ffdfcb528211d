"""A suite that lint has something to say about: read and loaded by tests/test_lint.py, judged by nobody."""

from typing import Any

import numpy as np
import torch

import contract

BLOCK = 64


def turned(r: Any, x: Any, weight: Any) -> Any:
    return r.round("out", x * weight)


def ones(rng: Any, shape: Any) -> Any:
    return np.ones(shape)


def exact_rows(rng: Any, shape: Any, scalars: Any, parameters: Any) -> Any:
    """A gain of one value, and rows that are their own mirror image: no fault of an index shows."""
    x = rng.integers(1, 128, (shape["rows"], shape["d"])).astype(float)
    return {"x": x + x[:, ::-1], "weight": np.full(shape["d"], 2.0)}


contract.register(
    contract.Contract(
        name="turned",
        family="elementwise",
        reference=turned,
        operands=(
            contract.tensor("x", "rows d"),
            contract.tensor("weight", "d", typical=ones),
            contract.output("out", "rows d"),
        ),
        profiles=(contract.Profile("once", points={"out": "bf16"}),),
        row_dims=("rows",),
        shapes=({"rows": 16, "d": 64}, {"rows": 4, "d": 128}),
        exact=exact_rows,
        exact_shapes=({"d": 64},),
        summary="x * weight",
    )
)


@contract.implementation("turned", profile="once", name="torch")
def turned_torch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    parts = [
        (a.float() * b.float())
        for a, b in zip(x.split(BLOCK, -1), weight.split(BLOCK), strict=True)
    ]
    return torch.cat(parts, -1).bfloat16()


@contract.red("turned", profile="once", gate="exact")
def rounds_to_fp32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.float() * weight.float()


@contract.red("turned", profile="once", gate="exact")
def nothing_at_all(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


@contract.red("turned", profile="once", gate="exact")
def gain_left_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.clone()


# lint: the format is the fault
@contract.red("turned", profile="once", gate="exact")
def in_fp16(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x.float() * weight.float()).half()
