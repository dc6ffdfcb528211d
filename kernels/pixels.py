"""Pixels to the numbers that a vision tower reads: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.lazy import lazy
from contract.references.pixels import pixels as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

FP32 = {"factor": "fp32", "rescaled": "fp32", "centred": "fp32", "out": "fp32"}


def typical_mean(rng: Any, shape: tuple[int, ...]) -> Any:
    """Means of the channels of photographs."""
    return rng.uniform(0.4, 0.5, shape)


def typical_std(rng: Any, shape: tuple[int, ...]) -> Any:
    """Their standard deviations."""
    return rng.uniform(0.2, 0.3, shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: every code; mean and std 1/2, or those of ImageNet where there are three channels."""
    size = (shape["rows"], shape["d"], shape["channels"])
    codes = np.resize(rng.permuted(np.arange(256 * 4) % 256), size)
    if shape["channels"] != 3:
        return {"codes": codes, "mean": np.full(size[-1:], 0.5), "std": np.full(size[-1:], 0.5)}
    return {"codes": codes, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


pixels = register(
    Contract(
        name="pixels",
        family="vision",
        summary="8-bit pixels scaled to 0 .. 1 and normalised by channel",
        reference=reference,
        operands=(
            tensor("codes", "rows d channels", "uint8"),
            tensor("mean", "channels", "fp32", typical=typical_mean),
            tensor("std", "channels", "fp32", typical=typical_std),
            output("out", "rows d channels"),
        ),
        options={"scaling": ("quotient", "product", "folded")},
        profiles=(
            Profile(
                "float32",
                FP32,
                {"out": "fp32"},
                options={"scaling": "quotient"},
                users="SigLIP's processor in NumPy",
            ),
            Profile(
                "folded",
                FP32,
                {"out": "fp32"},
                options={"scaling": "folded"},
                users="processors of transformers in torch",
            ),
            Profile(
                "once",
                {"factor": None, "rescaled": None, "centred": None, "out": "bf16"},
                options={"scaling": ("quotient", "product", "folded")},
                users="Gemma 4 from fp32 pixels: fp32 steps, one rounding",
            ),
            Profile(
                "each_step",
                {"factor": None, "rescaled": "bf16", "centred": "bf16", "out": "bf16"},
                options={"scaling": ("quotient", "product")},
                users="Gemma 4 from bf16 pixels",
            ),
        ),
        row_dims=("rows",),
        shapes=(
            {"rows": 1, "d": 256, "channels": 3},
            {"rows": 16, "d": 384, "channels": 3},
            {"rows": 448, "d": 448, "channels": 3},
        ),
        awkward=({"rows": 3, "d": 1, "channels": 1}, {"rows": 5, "d": 37, "channels": 3}),
        stress=({"d": 16, "channels": 3}, {"d": 65, "channels": 1}, {"d": 7, "channels": 4}),
        exact=exact_rows,
        exact_shapes=(
            {"d": 4, "channels": 1},
            {"d": 16, "channels": 1},
            {"d": 2, "channels": 3},
            {"d": 4, "channels": 3},
        ),
    )
)


@implementation("pixels", name="torch", profile=("float32", "folded", "once", "each_step"))
def pixels_torch(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """fp32 steps, or bf16 ones under each_step."""
    p = codes.float()
    if profile == "folded":
        return (p - mean * 255.0) / (std * 255.0)
    p = p / 255.0
    if profile == "each_step":
        centred = (p.bfloat16().float() - mean).bfloat16()
        return (centred.float() / std).bfloat16()
    out = (p - mean) / std
    return out if profile == "float32" else out.bfloat16()
