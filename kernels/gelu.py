"""GELU: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import activations, full_significands
from contract.kernels.softcap import TANH
from contract.lazy import lazy
from contract.references.gelu import gelu as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

ERF = "CUDA C++ Programming Guide, single-precision functions: erff at most 2 ulp; SLEEF erff_u10 (torch CPU): 1.0 ulp"


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: full significands from 2^-8 to 32, few of them negative, and zeros of both signs.

    Positive arguments are one bf16 value nearly always (beyond 4 the output is x); below -1 the sum 1 + tanh cancels.
    """
    rows, n = shape["rows"], shape["n"]
    x = full_significands(rng, (rows, n)) / 256.0
    x = np.where(
        x > 0,
        x * np.exp2(rng.integers(-8, 6, (rows, n))),
        x * np.exp2(rng.integers(-8, 0, (rows, n))),
    )
    x[1::2] = np.abs(x[1::2])
    return {"x": np.where(rng.random((rows, n)) < 0.05, np.copysign(0.0, x), x)}


gelu = register(
    Contract(
        name="gelu",
        family="activations",
        summary="x times the normal distribution function, in the tanh or the erf form",
        reference=reference,
        operands=(
            tensor("x", "rows n", typical=activations),
            output("out", "rows n", in_place_of="x"),
        ),
        parameters={"form": ("tanh", "erf")},
        profiles=(
            Profile(
                "once",
                {"out": "bf16"},
                users="torch F.gelu: SigLIP, Qwen3-VL (blocks tanh, mergers erf)",
            ),
            Profile(
                "float32",
                {"out": "fp32"},
                {"x": "fp32", "out": "fp32"},
                users="torch F.gelu in fp32",
                not_applicable={
                    "exact": "tanh and erf within 2 fp32 ulps leave few fp32 outputs one value but 0"
                },
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        shapes=tuple({"rows": rows, "n": 4_304} for rows in (1, 16, 128)),
        awkward=(
            {"rows": 1, "n": 1},
            {"rows": 5, "n": 517},
            {"rows": 2, "n": 1_025},
            {"rows": 3, "n": 32_771},
        ),
        stress=({"n": 64}, {"n": 5}, {"n": 257}, {"n": 1024}),
        exact=exact_rows,
        exact_shapes=({"n": 64}, {"n": 5}, {"n": 1_024, "rows": 16}, {"n": 4_099, "rows": 6}),
        freedoms={"tanh": TANH, "erf": ERF},
    )
)


@implementation("gelu", name="torch", profile=("once", "float32"))
def gelu_torch(x: torch.Tensor, *, form: str) -> torch.Tensor:
    """fp32 inside, one rounding."""
    wide = x.float()
    if form == "erf":
        squashed = torch.erf(wide * math.sqrt(0.5))
    else:
        squashed = torch.tanh((wide + wide * wide * wide * 0.044715) * math.sqrt(2.0 / math.pi))
    return (0.5 * wide * (1.0 + squashed)).to(x.dtype)
