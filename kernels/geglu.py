"""GeGLU: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import GATED_SHAPES, activations, full_significands
from contract.kernels.softcap import TANH
from contract.lazy import lazy
from contract.references.geglu import geglu as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

STEPS = ("sq", "cube", "scaled", "inner", "arg", "tanh", "one_plus", "half", "gelu", "out")
HALF = "half a bf16 value is one, but for the last bit of subnormals, which may be flushed"


def rounded_at(*points: str) -> dict[str, str | None]:
    """Every point of GeGLU, those named in bf16."""
    return {step: "bf16" if step in points else None for step in STEPS}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: full significands in gate and up, gates zero in places.

    Rows in turn: saturated gates; gates of both signs around 1, where the cube counts (one value where every step
    is rounded); gates that are negative only above -1, as 1 + tanh kept in fp32 cancels below.
    """
    rows, n = shape["rows"], shape["n"]
    gate = full_significands(rng, (rows, n)) / 256.0
    gate = np.where(gate > 0, gate * np.exp2(rng.integers(-6, 4, (rows, n))), gate)
    gate[::4] = np.abs(gate[::4]) * np.exp2(rng.integers(4, 8, gate[::4].shape))
    around = full_significands(rng, gate[1::2].shape) / 256.0
    gate[1::2] = around * np.exp2(rng.integers(-1, 3, around.shape))
    up = full_significands(rng, (rows, n)) / 256.0 * np.exp2(rng.integers(-6, 6, (rows, 1)))
    return {"gate": np.where(rng.random((rows, n)) < 0.05, np.copysign(0.0, gate), gate), "up": up}


geglu = register(
    Contract(
        name="geglu",
        family="activations",
        summary="gelu(gate) * up, tanh form",
        reference=reference,
        operands=(
            tensor("gate", "rows n", typical=activations),
            tensor("up", "rows n"),
            output("out", "rows n", in_place_of="gate"),
        ),
        options={"constants": ("fp32", "bf16")},
        profiles=(
            Profile(
                "two_step",
                rounded_at("gelu", "out"),
                options={"constants": "fp32"},
                users="torch: F.gelu(gate) * up (Gemma)",
            ),
            Profile(
                "each_op",
                rounded_at(*STEPS[1:]),
                options={"constants": "bf16"},
                users="MLX: nn.gelu_approx(gate) * up",
                vacuous={"half": HALF},
            ),
            Profile(
                "each_product",
                rounded_at(*STEPS),
                options={"constants": "fp32"},
                users="torch operators, whose pow(x, 3) is two products: transformers' NewGELUActivation (T5 1.1)",
                vacuous={"half": HALF},
            ),
            Profile(
                "once",
                rounded_at("out"),
                options={"constants": "fp32"},
                users="kernels that keep the activation in registers",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        shapes=GATED_SHAPES,
        awkward=({"rows": 1, "n": 1}, {"rows": 5, "n": 517}, {"rows": 2, "n": 1_025}),
        stress=({"n": 64}, {"n": 5}, {"n": 257}, {"n": 512}),
        exact=exact_rows,
        exact_shapes=({"n": 64}, {"n": 5}, {"n": 1_024, "rows": 16}),
        freedoms={"tanh": TANH},
    )
)


@implementation("geglu", name="torch", profile=("two_step", "each_op", "each_product", "once"))
def geglu_torch(gate: torch.Tensor, up: torch.Tensor, *, profile: str) -> torch.Tensor:
    """torch's own GELU, which is fp32 inside, or one operator a step; rounded to bf16 where the profile says so."""
    if profile in ("each_op", "each_product"):
        return _each_op(gate, up, 0.044715, math.sqrt(2.0 / math.pi), profile)
    gelu = torch.nn.functional.gelu
    if profile == "two_step":
        return gelu(gate, approximate="tanh") * up
    return (gelu(gate.float(), approximate="tanh") * up.float()).to(gate.dtype)


def _each_op(
    gate: torch.Tensor, up: torch.Tensor, k: float, c: float, profile: str
) -> torch.Tensor:
    # torch rounds the result of every operator to bf16 and takes Python numbers in fp32
    if profile == "each_op":
        k, c = (float(torch.tensor(number, dtype=gate.dtype)) for number in (k, c))
        cube = gate.float().pow(3).to(gate.dtype)
    else:
        cube = gate * gate * gate
    squashed = torch.tanh((gate + cube * k) * c)
    return (gate * 0.5) * (1.0 + squashed) * up
