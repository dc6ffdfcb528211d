"""Gated RMS normalisation: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import (
    AWKWARD,
    EXACT,
    STRESS,
    activations,
    full_significands,
    keep_columns,
    model_shapes,
    near_one,
)
from contract.kernels.rms_norm import RSQRT
from contract.lazy import lazy
from contract.references.rms_norm_gated import rms_norm_gated as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: squares that sum exactly in every order, and gates that are 0, saturated or (narrow rows) any.

    From 32 on silu(z) is z within 2^-46: powers of two there keep products of 8 bits away from ties.
    """
    rows, d = shape["rows"], shape["d"]
    x = keep_columns(rng, full_significands(rng, (rows, d)), 256)
    x[::4] = np.copysign(1.0, x[::4])
    x = x * np.exp2(rng.integers(-8, 8, (rows, 1)))
    gate = np.exp2(rng.integers(5, 8, (rows, d)))
    gate[rng.random((rows, d)) < 0.125] = 0.0
    if d <= 64:
        gate = np.where(rng.random((rows, d)) < 0.5, gate, rng.standard_normal((rows, d)))
    return {"x": x, "gate": gate, "weight": full_significands(rng, (d,)) / 128.0}


rms_norm_gated = register(
    Contract(
        name="rms_norm_gated",
        family="norms",
        summary="RMS normalisation of each row, with a gain, times silu of a gate",
        reference=reference,
        operands=(
            tensor("x", "rows d"),
            tensor("gate", "rows d", typical=activations),
            tensor("weight", "d", typical=near_one),
            output("out", "rows d"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        profiles=(
            Profile(
                "three_step",
                {"normed": "bf16", "scaled": "bf16", "out": "bf16"},
                users="Qwen3.5 in transformers",
            ),
            Profile(
                "once",
                {"normed": None, "scaled": None, "out": "bf16"},
                users="fused kernels (flash-linear-attention)",
            ),
        ),
        row_dims=("rows",),
        # 128 is the head of Qwen3.5's gated delta layers
        # Qwen3.5 norms its heads of 128; the catalogue's norms are judged up to 2560 here, wider in rms_norm
        shapes=model_shapes((128, 1152, 2048, 2560)),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=EXACT,
        freedoms={
            "mean": "any order of the sum: a proof, Higham section 4.2",
            "rsqrt": RSQRT,
            "exp": "CUDA C++ Programming Guide, single-precision functions: expf at most 2 ulp",
        },
    )
)


@implementation("rms_norm_gated", name="torch", profile=("three_step", "once"))
def rms_norm_gated_torch(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float, profile: str
) -> torch.Tensor:
    """fp32 inside; under three_step the row is rounded after the norm and after the gain."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if profile == "three_step":
        normed = (normed.to(x.dtype) * weight).float()
    else:
        normed = normed * weight.float()
    return normed.mul_(torch.nn.functional.silu(gate.float())).to(x.dtype)
