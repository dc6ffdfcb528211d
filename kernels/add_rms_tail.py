"""The tail of a residual block: contract and torch implementation."""

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
    keep_columns,
    layer_scalar,
    model_shapes,
    near_one,
)
from contract.kernels.rms_norm import RSQRT, inverse_root, rms_norm_torch
from contract.lazy import lazy
from contract.references.add_rms_tail import add_rms_tail as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

MEAN = "any order of the sum: a proof, Higham section 4.2"


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: stream plus branch is an integer whose squares sum exactly in every order.

    Up to 64 columns the sum has 9 bits and must be rounded to be stored; wider rows keep 256 sums of 8 bits. A normed
    branch is +-w but for eps, as its rows have one magnitude.
    """
    rows, d = shape["rows"], shape["d"]
    power = np.exp2(rng.integers(-4, 4, (rows, 1)))
    whole = keep_columns(rng, full_significands(rng, (rows, d), 9 if d <= 64 else 8), 256)
    part = np.trunc(whole / 2)
    values = {
        "x": (whole - part) * power,
        "residual": part * power,
        "weight": full_significands(rng, (d,)) / 128.0,
        "scalar": np.asarray(0.5 if d > 64 else float(full_significands(rng, ())) / 256.0),
    }
    if parameters["branch_norm"] == "yes":
        values["x"] = np.copysign(np.exp2(rng.integers(-2, 8, (rows, 1))), whole)
        values["branch_weight"] = full_significands(rng, (d,)) / 128.0
        values["residual"] = full_significands(rng, (rows, d)) / 32.0
    return values


add_rms_tail = register(
    Contract(
        name="add_rms_tail",
        family="norms",
        summary="norm of a branch, residual sum, scalar and the next norm",
        reference=reference,
        operands=(
            tensor("x", "rows d"),
            tensor("residual", "rows d"),
            tensor("branch_weight", "d", typical=near_one, when={"branch_norm": ("yes",)}),
            tensor("scalar", "", typical=layer_scalar, when={"scale": ("yes",)}),
            tensor("weight", "d", typical=near_one),
            output("total", "rows d", in_place_of="residual"),
            output("out", "rows d"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        parameters={"branch_norm": ("yes", "no"), "scale": ("no", "yes")},
        options={"reads": ("stored", "unrounded")},
        profiles=(
            Profile(
                "each",
                {"branch": "bf16", "sum": "bf16", "total": "bf16", "normed": None, "out": "bf16"},
                options={"reads": "stored"},
                users="Gemma 4 in transformers",
            ),
            Profile(
                "each_norm",
                {"branch": "bf16", "sum": None, "total": "bf16", "normed": None, "out": "bf16"},
                options={"reads": "unrounded"},
                when={"branch_norm": ("yes",)},
                users="MLX, fused tails that round each norm",
            ),
            Profile(
                "fused",
                {"branch": None, "sum": None, "total": "bf16", "normed": None, "out": "bf16"},
                options={"reads": "unrounded"},
                users="fused kernels: one pass in fp32, only what is stored is rounded",
            ),
            Profile(
                "two_step",
                {"branch": None, "sum": None, "total": "bf16", "normed": "bf16", "out": "bf16"},
                options={"reads": "stored"},
                when={"branch_norm": ("no",), "scale": ("no",)},
                users="Llama, Qwen3 in transformers: the residual sum, then the next norm",
            ),
        ),
        row_dims=("rows",),
        # the widths of the models that have the longest of these tails (Gemma 4)
        shapes=model_shapes((3840, 5376)),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=EXACT,
        freedoms={"branch_mean": MEAN, "mean": MEAN, "rsqrt": RSQRT},
    )
)


@implementation("add_rms_tail", name="torch", profile=("each", "each_norm", "fused", "two_step"))
def add_rms_tail_torch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    branch_weight: torch.Tensor | None = None,
    scalar: torch.Tensor | None = None,
    *,
    eps: float,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The total as it is stored, and its norm; fp32 between the rounding points."""
    if profile == "two_step":
        total = x + residual
        return total, rms_norm_torch(total, weight, eps=eps, gain="w", profile="two_step")
    if profile == "each":
        # a sum of two bf16 tensors is rounded once, as it is named
        branch = x if branch_weight is None else normed(x.float(), branch_weight, eps).to(x.dtype)
        stream = branch + residual
        total = stream if scalar is None else stream * scalar
        return total, normed(total.float(), weight, eps).to(x.dtype)
    branch = x.float()
    if branch_weight is not None:
        branch = normed(branch, branch_weight, eps)
        if profile != "fused":
            branch = branch.to(x.dtype).float()
    stream = branch + residual.float()
    if scalar is not None:
        stream = stream * scalar.float()
    return stream.to(x.dtype), normed(stream, weight, eps).to(x.dtype)


def normed(wide: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * w along each row, in fp32."""
    return wide * inverse_root(wide, eps) * weight.float()
