"""Normalisation of rows to length 1: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import AWKWARD, STRESS, full_significands, keep_columns
from contract.kernels.delta_data import ANY_ORDER
from contract.kernels.rms_norm import RSQRT
from contract.lazy import lazy
from contract.references.l2norm import l2norm as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: squares that sum exactly in every order, and sizes at which eps is half of the sum or nothing.

    Every fourth row has four values of one magnitude and zeros: in fp32 only its zeros are one value.
    """
    rows, d = shape["rows"], shape["d"]
    x = keep_columns(rng, full_significands(rng, (rows, d)), 256)
    x[::4] = keep_columns(rng, np.copysign(1.0, x[::4]), 4)
    x = x * np.exp2(rng.integers(-16, 8, (rows, 1)))
    # rows of zeros keep their signs
    x[1::8] = np.copysign(0.0, x[1::8])
    return {"x": x}


l2norm = register(
    Contract(
        name="l2norm",
        family="delta",
        summary="normalisation of each row to length 1",
        reference=reference,
        operands=(tensor("x", "rows d"), output("out", "rows d")),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        profiles=(
            Profile(
                "once",
                {"out": "bf16"},
                users="flash-linear-attention on bf16 rows",
            ),
            Profile(
                "float32",
                {"out": "fp32"},
                {"x": "fp32", "out": "fp32"},
                users="Qwen3.5 in transformers, which converts its rows before",
                vacuous={
                    "truncate-out": "2 ulps of the inverse are wider than the last bit of fp32"
                },
            ),
        ),
        row_dims=("rows",),
        # heads of 128 (Qwen3.5): of one token's queries and keys, and of 70 tokens
        shapes=({"rows": 32, "d": 128}, {"rows": 2240, "d": 128}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 128}, {"d": 4}, {"d": 1024, "rows": 16}),
        freedoms={"sum": ANY_ORDER, "rsqrt": RSQRT},
    )
)


@implementation("l2norm", name="torch", profile=("once", "float32"))
def l2norm_torch(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    """fp32 inside, one rounding."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
