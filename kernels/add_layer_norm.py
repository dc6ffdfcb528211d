"""A residual sum and the layer norm that reads it: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_one, near_zero
from contract.kernels.layer_norm import exact_rows as exact_norms
from contract.kernels.layer_norm import layer_norm, layer_norm_torch
from contract.lazy import lazy
from contract.references.add_layer_norm import add_layer_norm as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: sums whose mean is exactly 0, split in two parts.

    Where 32 columns are drawn the sums have 9 bits and must be rounded to be stored.
    """
    rows, d = shape["rows"], shape["d"]
    values = dict(exact_norms(rng, shape, scalars, parameters))
    whole = values.pop("x")
    if d == 32:
        half = np.abs(full_significands(rng, (rows, d // 2), 9))
        whole = rng.permuted(np.concatenate([half, -half], -1), axis=-1)
    unit = np.exp2(np.floor(np.log2(np.abs(whole).max(-1, keepdims=True))) - 7)
    part = np.trunc(whole / unit / 2.0) * unit
    return {**values, "x": whole - part, "residual": part}


add_layer_norm = register(
    Contract(
        name="add_layer_norm",
        family="norms",
        summary="residual sum, stored, and its layer norm",
        reference=reference,
        operands=(
            tensor("x", "rows d"),
            tensor("residual", "rows d"),
            tensor("weight", "d", typical=near_one),
            tensor("bias", "d", typical=near_zero),
            output("total", "rows d", in_place_of="residual"),
            output("out", "rows d"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        options={"reads": ("stored", "unrounded")},
        profiles=(
            Profile(
                "stored",
                {"total": "bf16", "normed": None, "scaled": None, "out": "bf16"},
                options={"reads": "stored"},
                users="SigLIP, Qwen3-VL's tower: a sum and a norm of two passes",
            ),
            Profile(
                "fused",
                {"total": "bf16", "normed": None, "scaled": None, "out": "bf16"},
                options={"reads": "unrounded"},
                users="fused kernels: one pass in fp32, only what is stored is rounded",
            ),
            Profile(
                "each_op",
                {"total": "bf16", "normed": "bf16", "scaled": "bf16", "out": "bf16"},
                options={"reads": "stored"},
                users="MLX",
            ),
        ),
        row_dims=("rows",),
        # SigLIP 1,152; Qwen3-VL's tower 1,024
        shapes=({"rows": 1, "d": 1_152}, {"rows": 128, "d": 1_152}, {"rows": 64, "d": 1_024}),
        awkward=({"rows": 3, "d": 1}, {"rows": 5, "d": 517}, {"rows": 17, "d": 1_025}),
        stress=({"d": 64}, {"d": 5}, {"d": 257}, {"d": 512}, {"d": 2}),
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 32}, {"d": 16}, {"d": 1_024, "rows": 16}),
        freedoms={name: layer_norm.freedoms[name] for name in ("mean", "variance", "rsqrt")},
    )
)


@implementation("add_layer_norm", name="torch", profile=("stored", "fused", "each_op"))
def add_layer_norm_torch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The total as it is stored, and its norm; fp32 inside the norm."""
    stream = x.float() + residual.float()
    total = stream.to(x.dtype)
    if profile == "fused":
        return total, layer_norm_torch(
            stream, weight.float(), bias.float(), eps=eps, profile="float32"
        ).to(x.dtype)
    norm = "each_op" if profile == "each_op" else "once"
    return total, layer_norm_torch(total, weight, bias, eps=eps, profile=norm)
