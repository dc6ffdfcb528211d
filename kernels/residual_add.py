"""The residual sum: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import AWKWARD, STRESS, full_significands
from contract.lazy import lazy
from contract.references.residual_add import residual_add as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Integers of 8 bits over 2^0 to 2^9 of each other, ties of bf16 among the sums; half of the rows have b's
    significand reach past fp32's last bit; opposites, infinities and NaN at the ends of some rows."""
    size = (shape["rows"], shape["d"])
    a, b = full_significands(rng, size), full_significands(rng, size)
    b = b * np.exp2(rng.integers(-9, 10, (size[0], 1)))
    b[::2] *= np.exp2(-rng.integers(14, 24, b[::2].shape))
    a[:, -1] = np.resize([np.inf, np.inf, np.nan, 0.0, -0.0, 3.0], size[0])
    b[:, -1] = np.resize([np.inf, -np.inf, 1.0, -0.0, -0.0, -3.0], size[0])
    return {"a": a, "b": b}


residual_add = register(
    Contract(
        name="residual_add",
        family="activations",
        summary="the stream plus a branch",
        reference=reference,
        operands=(
            tensor("a", "rows d"),
            tensor("b", "rows d"),
            output("out", "rows d", in_place_of="a"),
        ),
        profiles=(
            Profile("once", {"out": "bf16"}, users="every transformer in bf16"),
            Profile(
                "float32",
                {"out": "fp32"},
                {"a": "fp32", "b": "fp32", "out": "fp32"},
                users="streams that are kept in fp32",
            ),
        ),
        row_dims=("rows",),
        column_dim="d",
        shapes=({"rows": 1, "d": 5376}, {"rows": 16, "d": 2560}, {"rows": 128, "d": 1152}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 5}, {"d": 1024, "rows": 8}),
    )
)


@implementation("residual_add", name="torch", profile=("once", "float32"))
def residual_add_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """torch's sum of two tensors of one format."""
    return a + b
