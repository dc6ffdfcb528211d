"""Soft cap: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands, logits
from contract.lazy import lazy
from contract.references.softcap import softcap as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

TANH = "CUDA C++ Programming Guide, single-precision functions: tanhf at most 2 ulp; SLEEF tanhf_u10 (torch CPU): 1.0 ulp"
#: Why no input shows which of the two divisions was used.
ONE_ULP = "x / cap and x * (1 / cap) are at most 2 fp32 ulps apart, and no bf16 value over 30 or 50 lies that near a tie"


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: full significands from cap / 64 to 16 cap, zeros of both signs, quotients that are powers of two."""
    rows, n = shape["rows"], shape["n"]
    cap = scalars["cap"]
    x = full_significands(rng, (rows, n)) / 256.0 * cap * np.exp2(rng.integers(-6, 5, (rows, n)))
    x[1::4] = np.copysign(cap * np.exp2(rng.integers(-20, 5, x[1::4].shape)), x[1::4])
    return {"x": np.where(rng.random((rows, n)) < 0.05, np.copysign(0.0, x), x)}


softcap = register(
    Contract(
        name="softcap",
        family="activations",
        summary="cap * tanh(x / cap)",
        reference=reference,
        operands=(tensor("x", "rows n", typical=logits), output("out", "rows n", in_place_of="x")),
        scalars=(Scalar("cap", (30.0, 50.0)),),
        options={"division": ("true", "reciprocal")},
        profiles=(
            Profile(
                "each_op",
                {"quotient": "bf16", "tanh": "bf16", "out": "bf16"},
                options={"division": "true"},
                users="torch operators (Gemma 2, Gemma 4 logits), MLX",
                vacuous={"division": ONE_ULP},
            ),
            Profile(
                "once",
                {"quotient": None, "tanh": None, "out": "bf16"},
                options={"division": "true"},
                users="kernels that cap in registers",
                vacuous={"division": "tanh's 2 ulps hide the ulp between the two"},
            ),
            Profile(
                "float32",
                {"quotient": None, "tanh": None, "out": "fp32"},
                {"x": "fp32", "out": "fp32"},
                options={"division": ("true", "reciprocal")},
                users="torch in fp32: true on the CPU, reciprocal on CUDA",
                vacuous={"out": "tanh's 2 ulps hide how the last bit is rounded"},
                not_applicable={
                    "exact": "tanh within 2 fp32 ulps leaves no output one value but 0"
                },
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        shapes=(
            {"rows": 1, "n": 262_144},
            {"rows": 4, "n": 262_144},
            {"rows": 3, "n": 4_096},
        ),
        awkward=(
            {"rows": 1, "n": 1},
            {"rows": 5, "n": 517},
            {"rows": 2, "n": 1_025},
            {"rows": 3, "n": 32_771},
        ),
        stress=({"n": 64}, {"n": 5}, {"n": 257}, {"n": 1024}),
        exact=exact_rows,
        exact_shapes=({"n": 64}, {"n": 5}, {"n": 1_024, "rows": 16}, {"n": 4_099, "rows": 6}),
        freedoms={"tanh": TANH},
    )
)


@implementation("softcap", name="torch", profile=("each_op", "once", "float32"))
def softcap_torch(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """fp32 inside; under each_op operators of x's own format, which round their results to it."""
    if profile == "each_op":
        return (x / cap).tanh_().mul_(cap)
    return (x.float() / cap).tanh_().mul_(cap).to(x.dtype)
