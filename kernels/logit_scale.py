"""Scale and bias of image-text logits: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.swiglu import EXP
from contract.lazy import lazy
from contract.references.logit_scale import logit_scale as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def cosines(rng: Any, shape: tuple[int, ...]) -> Any:
    """Products of rows of length 1: small numbers."""
    return 0.1 * rng.standard_normal(shape)


def log_factors(rng: Any, shape: tuple[int, ...]) -> Any:
    """Around log 110, where training ends."""
    return 4.7 + 0.1 * rng.standard_normal(shape)


def biases(rng: Any, shape: tuple[int, ...]) -> Any:
    """Around -16, where training ends."""
    return -16.0 + rng.standard_normal(shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: a logarithm of 0, whose factor is exactly 1, and full significands beside a bias that rounds them.

    8 columns: a factor of exp(1.5), which bf16 outputs show.
    """
    size = (shape["rows"], shape["n"])
    x = full_significands(rng, size, 24) * np.exp2(rng.integers(-26, -16, size))
    scale = 1.5 if shape["n"] == 8 else 0.0
    return {"logits": x, "scale": scale, "bias": full_significands(rng, ()) / 16.0}


logit_scale = register(
    Contract(
        name="logit_scale",
        family="activations",
        summary="logits times exp(scale), plus a bias",
        reference=reference,
        operands=(
            tensor("logits", "rows n", "fp32", typical=cosines),
            tensor("scale", "", "fp32", typical=log_factors),
            tensor("bias", "", "fp32", typical=biases),
            output("out", "rows n", "fp32"),
        ),
        profiles=(
            Profile(
                "float32",
                {"factor": None, "scaled": None, "out": "fp32"},
                users="SigLIP in fp32",
            ),
            Profile(
                "each_op",
                {"factor": "bf16", "scaled": "bf16", "out": "bf16"},
                {"logits": "bf16", "scale": "bf16", "bias": "bf16", "out": "bf16"},
                users="SigLIP in bf16 (transformers)",
            ),
        ),
        row_dims=("rows",),
        # texts x images
        shapes=({"rows": 1, "n": 1}, {"rows": 64, "n": 32}, {"rows": 256, "n": 512}),
        awkward=({"rows": 3, "n": 1}, {"rows": 5, "n": 517}, {"rows": 17, "n": 33}),
        stress=({"n": 64}, {"n": 5}, {"n": 257}, {"n": 2}),
        exact=exact_rows,
        exact_shapes=({"n": 64}, {"n": 8}, {"n": 5}),
        freedoms={"exp": EXP},
    )
)


@implementation("logit_scale", name="torch", profile=("float32", "each_op"))
def logit_scale_torch(
    logits: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Three operators, each of which rounds to the operands' format."""
    return logits * scale.exp() + bias
