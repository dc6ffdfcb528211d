"""Layer normalisation: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import (
    AWKWARD,
    EXACT,
    STRESS,
    full_significands,
    model_shapes,
    near_one,
    near_zero,
    zero_sums,
)
from contract.kernels.rms_norm import RSQRT
from contract.lazy import lazy
from contract.references.layer_norm import layer_norm as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

TWO_PASS = {"moments": "two_pass"}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: rows whose mean is exactly 0, and constant rows, whose output is the bias.

    Up to 64 columns: integers of 8 bits and their opposites, with any gain. Wider rows: +-2^k of one magnitude, which
    normalise to +-1 but for eps; gains and biases such that no w + b is a tie (odd multiples of 2^-10 below 2).
    8 columns: gains below 2^-20 of the bias, so that fp32 outputs are one value too. 5 columns: one value beside four
    equal ones, a mean up to 600 times the deviation, where a one-pass variance has lost percents.
    """
    rows, d = shape["rows"], shape["d"]
    x = zero_sums(rng, (rows, d)) * np.exp2(rng.integers(-8, 8, (rows, 1)))
    weight = full_significands(rng, (d,)) / 128.0
    bias = (2 * rng.integers(-64, 64, d) + 1) / 1024.0
    if d >= 64:
        wide = np.copysign(np.exp2(rng.integers(-2, 8, (rows, 1))), x)
        x = wide if d > 64 else np.where(np.arange(rows)[:, None] % 2, wide, x)
    if d == 8:
        weight = weight * np.exp2(-rng.integers(20, 26, d))
    if d == 5:
        weight, bias = np.sign(weight), np.zeros(d)
        x = np.repeat(full_significands(rng, (rows, 1)), d, -1)
        x[np.arange(rows), rng.integers(0, d, rows)] += rng.choice((-1.0, 1.0), rows)
    # a one-pass variance of these is far from 0; the reciprocal of an odd width leaves no exact mean
    if d & (d - 1) == 0:
        x[::4] = full_significands(rng, (len(x[::4]), 1)) * 16.0
    return {"x": x, "weight": weight, "bias": bias}


layer_norm = register(
    Contract(
        name="layer_norm",
        family="norms",
        summary="layer normalisation of each row, with gain and bias",
        reference=reference,
        operands=(
            tensor("x", "rows d"),
            tensor("weight", "d", typical=near_one),
            tensor("bias", "d", typical=near_zero),
            output("out", "rows d"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        options={"moments": ("two_pass", "merged")},
        profiles=(
            Profile(
                "once",
                {"normed": None, "scaled": None, "out": "bf16"},
                options={"moments": ("two_pass", "merged")},
                users="torch F.layer_norm, SigLIP, Qwen3-VL vision tower",
            ),
            Profile(
                "each_op",
                {"normed": "bf16", "scaled": "bf16", "out": "bf16"},
                options=TWO_PASS,
                users="MLX",
            ),
            Profile(
                "float32",
                {"normed": None, "scaled": None, "out": "fp32"},
                {"x": "fp32", "weight": "fp32", "bias": "fp32", "out": "fp32"},
                options=TWO_PASS,
                users="normalisation inside fp32 chains",
            ),
        ),
        row_dims=("rows",),
        shapes=(*model_shapes(), {"rows": 16, "d": 8192}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=(*EXACT, {"d": 8}, {"d": 5}),
        freedoms={
            "mean": "any order of the sum: a proof, Higham section 4.2",
            "variance": "two passes in any order: a proof, Chan, Golub and LeVeque 1983, section 2",
            "merged": "Welford 1962, and Chan, Golub and LeVeque 1983, in any tree: a proof, contract.sums.welford_range",
            "rsqrt": RSQRT,
        },
    )
)


@implementation("layer_norm", name="torch", profile=("once", "each_op", "float32"))
def layer_norm_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, profile: str
) -> torch.Tensor:
    """Two passes in fp32; under each_op every step after the statistics is rounded to x's format."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if profile == "each_op":
        return normed.to(x.dtype) * weight + bias
    return torch.addcmul(bias.float(), normed, weight.float()).to(x.dtype)
