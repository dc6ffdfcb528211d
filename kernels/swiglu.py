"""SwiGLU: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import GATED_SHAPES, activations, full_significands
from contract.lazy import lazy
from contract.references.swiglu import swiglu as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

EXP = "CUDA C++ Programming Guide, single-precision functions: expf at most 2 ulp; SLEEF expf_u10 (torch CPU): 1.0 ulp"
FORMS = "both forms are within a few fp32 ulps of silu: no bf16 output of 4e7 drawn ones tells them apart"


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: full significands in gate and up, gates zero in places.

    A quarter of the rows has gates from 64 on, where silu(x) is x for any exp: they are exact in fp32 too.
    """
    rows, n = shape["rows"], shape["n"]
    gate = full_significands(rng, (rows, n)) / 256.0 * np.exp2(rng.integers(-6, 5, (rows, n)))
    large = np.abs(full_significands(rng, gate[::4].shape, bits=24)) * 2.0**-24
    gate[::4] = large * np.exp2(rng.integers(7, 10, large.shape))
    up = full_significands(rng, (rows, n)) / 256.0 * np.exp2(rng.integers(-6, 6, (rows, 1)))
    return {"gate": np.where(rng.random((rows, n)) < 0.05, np.copysign(0.0, gate), gate), "up": up}


swiglu = register(
    Contract(
        name="swiglu",
        family="activations",
        summary="silu(gate) * up",
        reference=reference,
        operands=(
            tensor("gate", "rows n", typical=activations),
            tensor("up", "rows n"),
            output("out", "rows n", in_place_of="gate"),
        ),
        options={"form": ("plain", "folded")},
        profiles=(
            Profile(
                "two_step",
                {"exp": None, "sigmoid": None, "silu": "bf16", "out": "bf16"},
                options={"form": "plain"},
                vacuous={"form": FORMS},
                users="torch: F.silu(gate) * up (Qwen3, Llama, DFlash)",
            ),
            Profile(
                "each_op",
                {"exp": "bf16", "sigmoid": "bf16", "silu": "bf16", "out": "bf16"},
                options={"form": "folded"},
                users="MLX: nn.silu(gate) * up, a product with mx.sigmoid",
            ),
            Profile(
                "once",
                {"exp": None, "sigmoid": None, "silu": None, "out": "bf16"},
                options={"form": "plain"},
                vacuous={"form": FORMS},
                users="kernels that keep the activation in registers",
            ),
            Profile(
                "float32",
                {"exp": None, "sigmoid": None, "silu": None, "out": "fp32"},
                {"gate": "fp32", "up": "fp32", "out": "fp32"},
                options={"form": "plain"},
                users="torch in fp32",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        shapes=GATED_SHAPES,
        awkward=({"rows": 1, "n": 1}, {"rows": 5, "n": 517}, {"rows": 2, "n": 1_025}),
        stress=({"n": 64}, {"n": 5}, {"n": 257}, {"n": 512}),
        exact=exact_rows,
        exact_shapes=({"n": 64}, {"n": 5}, {"n": 1_024, "rows": 16}),
        freedoms={"exp": EXP},
    )
)


@implementation("swiglu", name="torch", profile=("two_step", "each_op", "once", "float32"))
def swiglu_torch(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """fp32 inside; under each_op MLX's steps, under two_step torch's silu, which stores its result."""
    if profile == "two_step":
        return torch.nn.functional.silu(gate) * up
    wide = gate.float()
    if profile == "each_op":
        small = 1.0 / (1.0 + torch.exp(wide.abs()).to(gate.dtype).float())
        activated = wide * torch.where(wide < 0, small, 1.0 - small).to(gate.dtype).float()
    else:
        activated = wide / (1.0 + torch.exp(-wide))
    if profile == "each_op":
        activated = activated.to(gate.dtype).float()
    return (activated * up.float()).to(gate.dtype)
