"""The bias that makes up for quantised weights and activations: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_zero
from contract.lazy import lazy
from contract.references.bias_correct import bias_correct as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

ANY_ORDER = "any order: a proof, Higham, Accuracy and Stability, sections 3.1 and 4.2"


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Integers whose sums stay below 2^24 and reach 2^20, with odd ones among them: bf16 must round them, ties too.

    Every other row reads few channels, whose products have 16 bits; the others read them all.
    """
    outputs, channels = shape["outputs"], shape["channels"]
    few = np.argsort(rng.random((outputs, channels)), axis=-1) < 4
    sparse = np.where(few, full_significands(rng, (outputs, channels)), 0.0)
    dense = rng.integers(-31, 32, (outputs, channels)).astype(np.float64)
    weight = np.where(np.arange(outputs)[:, None] % 2 == 0, dense, sparse)
    return {
        "weight": weight,
        # codes of steps of 4: what nearest rounding leaves
        "quantised": 4.0 * np.rint(weight / 4.0),
        "mean": full_significands(rng, (channels,)),
        "quantised_mean": full_significands(rng, (channels,)),
        "bias": full_significands(rng, (outputs,)),
    }


bias_correct = register(
    Contract(
        name="bias_correct",
        family="quantize",
        summary="a bias that keeps a layer's mean output when weights and activations are quantised",
        reference=reference,
        operands=(
            tensor("weight", "outputs channels", "fp32", typical=near_zero),
            tensor("quantised", "outputs channels", "fp32", typical=near_zero),
            tensor("mean", "channels", "fp32"),
            tensor("quantised_mean", "channels", "fp32"),
            tensor("bias", "outputs"),
            output("out", "outputs"),
        ),
        profiles=(
            Profile("once", {"out": "bf16"}, users="SigLIP F143, biases in bf16"),
            Profile(
                "float32",
                {"out": "fp32"},
                {"bias": "fp32", "out": "fp32"},
                users="SigLIP F143, biases in fp32",
            ),
        ),
        row_dims=("outputs",),
        # SigLIP's 1,152 and 4,304 input channels; of up to 4,304 outputs a tile, as they do not depend on each other
        shapes=({"outputs": 64, "channels": 1_152}, {"outputs": 16, "channels": 4_304}),
        awkward=(
            {"outputs": 1, "channels": 1},
            {"outputs": 3, "channels": 257},
            {"outputs": 129, "channels": 63},
        ),
        stress=({"channels": 16}, {"channels": 3}, {"channels": 64}, {"channels": 1}),
        exact=exact_rows,
        # many outputs: one of 10^4 samples is an output
        exact_shapes=(
            {"channels": 64, "outputs": 256},
            {"channels": 5, "outputs": 256},
            {"channels": 517, "outputs": 8},
        ),
        freedoms={"products": ANY_ORDER},
    )
)


@implementation("bias_correct", name="torch", profile=("once", "float32"))
def bias_correct_torch(
    weight: torch.Tensor,
    quantised: torch.Tensor,
    mean: torch.Tensor,
    quantised_mean: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Two products of a matrix and a vector in fp32."""
    moved = weight @ mean - quantised @ quantised_mean
    return (bias.float() + moved).to(bias.dtype)
