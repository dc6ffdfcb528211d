"""Symmetric int8 quantisation: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import STRESS
from contract.lazy import lazy
from contract.references.quantize_int8 import quantize_int8 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

TENSOR, CHANNEL = {"granularity": ("tensor",)}, {"granularity": ("channel",)}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Scales that are powers of two (max = 127 of them), codes and halves of codes: every tie is met. Rows of zeros, or
    a whole tensor of them where it is narrow, have the scale 1."""
    size = (shape["rows"], shape["d"])
    halves = rng.integers(-253, 254, size).astype(np.float64) / 2.0
    unit = np.exp2(
        rng.integers(-6, 7, (shape["rows"], 1))
        if parameters["granularity"] == "channel"
        else rng.integers(-6, 7)
    )
    x = halves * unit
    x[:, 0] = np.where(rng.random(shape["rows"]) < 0.5, -127.0, 127.0) * np.ravel(unit)
    zeros = shape["d"] < 16 if parameters["granularity"] == "tensor" else np.arange(len(x)) % 8 == 5
    return {"x": np.where(np.reshape(zeros, (-1, 1)), np.copysign(0.0, x), x)}


quantize_int8 = register(
    Contract(
        name="quantize_int8",
        family="quantize",
        summary="symmetric int8 codes with one scale per tensor or per channel",
        reference=reference,
        operands=(
            tensor("x", "rows d", "fp32", finite=True),
            output("codes", "rows d", "int8"),
            output("scale", "", "fp32", when=TENSOR),
            output("row_scale", "rows", "fp32", when=CHANNEL),
        ),
        parameters={"granularity": ("tensor", "channel")},
        options={"division": ("true", "reciprocal")},
        profiles=(
            Profile(
                "divide",
                {"scale": "fp32", "code": "int8"},
                options={"division": "true"},
                users="PaliGemma INT8, torch",
            ),
            Profile(
                "reciprocal",
                {"scale": "fp32", "code": "int8"},
                options={"division": "reciprocal"},
                users="CUDA kernels",
                vacuous={"division=true": "reciprocals kept wider than fp32 give the quotients"},
            ),
        ),
        row_dims=("rows",),
        shapes=({"rows": 16, "d": 1152}, {"rows": 128, "d": 2048}, {"rows": 1028, "d": 1152}),
        awkward=({"rows": 3, "d": 1}, {"rows": 1, "d": 257}, {"rows": 17, "d": 1025}),
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 16}, {"d": 8}, {"d": 1024, "rows": 16}),
        shares="the scale",
        shares_when=TENSOR,
    )
)


@implementation("quantize_int8", name="torch", profile=("divide", "reciprocal"))
def quantize_int8_torch(
    x: torch.Tensor, *, granularity: str, profile: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Half-even rounding of x / s."""
    largest = x.abs().amax() if granularity == "tensor" else x.abs().amax(-1)
    scale = torch.where(
        largest > 0, largest / 127.0 if profile == "divide" else largest * (1.0 / 127.0), 1.0
    )
    wide = scale if granularity == "tensor" else scale[:, None]
    quotient = x / wide if profile == "divide" else x * (1.0 / wide)
    return quotient.clamp(-127.0, 127.0).round().to(torch.int8), scale
