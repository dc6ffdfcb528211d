"""A layer's scalar: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import AWKWARD, STRESS, full_significands, layer_scalar
from contract.lazy import lazy
from contract.references.scale import scale as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Full significands of 8 bits (24 in half of the rows, where the format has them) times one of 8: ties of bf16."""
    size = (shape["rows"], shape["d"])
    h = full_significands(rng, size)
    h[::2] = full_significands(rng, h[::2].shape, 24) * 2.0**-16
    h[:, -1] = np.resize([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.0], size[0])
    return {
        "h": h * np.exp2(rng.integers(-9, 10, size)),
        "scalar": full_significands(rng, ()) / 512.0,
    }


scale = register(
    Contract(
        name="scale",
        family="activations",
        summary="the stream times one number a layer",
        reference=reference,
        operands=(
            tensor("h", "rows d"),
            tensor("scalar", "", typical=layer_scalar),
            output("out", "rows d", in_place_of="h"),
        ),
        profiles=(
            Profile("once", {"out": "bf16"}, users="Gemma 4 in bf16"),
            Profile(
                "float32",
                {"out": "fp32"},
                {"h": "fp32", "scalar": "fp32", "out": "fp32"},
                users="Gemma 4 in fp32",
            ),
        ),
        row_dims=("rows",),
        column_dim="d",
        shapes=({"rows": 1, "d": 5376}, {"rows": 16, "d": 3840}, {"rows": 128, "d": 1152}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 5}, {"d": 1024, "rows": 8}),
    )
)


@implementation("scale", name="torch", profile=("once", "float32"))
def scale_torch(h: torch.Tensor, scalar: torch.Tensor) -> torch.Tensor:
    """torch's product with a tensor of one element."""
    return h * scalar
