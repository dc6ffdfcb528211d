"""Sums of groups of 64 values along a stated tree: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands, model_shapes
from contract.lazy import lazy
from contract.references.group_sums import GROUP
from contract.references.group_sums import group_sums as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

LEVELS = {f"level{k}": "fp32" for k in range(1, 7)}


def grouped(**shape: int) -> dict[str, int]:
    """The shape with the number of its groups."""
    return {**shape, "groups": shape["d"] // GROUP}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is one value: full significands over 24 binades, opposites in a quarter of the rows."""
    rows, d = shape["rows"], shape["d"]
    x = full_significands(rng, (rows, d), 24) * np.exp2(rng.integers(-24, 1, (rows, d)))
    x[::4, 1::2] = -x[::4, 0::2]
    return {"x": rng.permuted(x, axis=-1)}


group_sums = register(
    Contract(
        name="group_sums",
        family="norms",
        summary="sums of 64 neighbouring values of each row, along one fp32 tree",
        reference=reference,
        operands=(tensor("x", "rows d", "fp32"), output("sums", "rows groups", "fp32")),
        profiles=(
            Profile("float32", LEVELS, keeps_subnormals=True, users="affine products of fp32 rows"),
            Profile(
                "bf16_rows",
                LEVELS,
                {"x": "bf16"},
                keeps_subnormals=True,
                users="affine products of bf16 rows (Hadamard and W4 layers)",
            ),
        ),
        row_dims=("rows",),
        rules={f"d is {GROUP} groups": lambda s: s["d"] == GROUP * s["groups"]},
        shapes=tuple(grouped(**shape) for shape in model_shapes()),
        awkward=(grouped(rows=3, d=64), grouped(rows=17, d=192)),
        stress=(grouped(d=64), grouped(d=128), grouped(d=320)),
        exact=exact_rows,
        exact_shapes=(grouped(d=64), grouped(d=1152)),
        invariant=("batch", "layout", "launch"),
    )
)


@implementation("group_sums", name="torch", profile=("float32", "bf16_rows"))
def group_sums_torch(x: torch.Tensor) -> torch.Tensor:
    """Six rounds of additions of neighbours."""
    sums = x.float().reshape(x.shape[0], -1, GROUP)
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return sums.squeeze(-1)
