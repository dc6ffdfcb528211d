"""RMS normalisation: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import AWKWARD, EXACT, STRESS, full_significands, model_shapes, near_one
from contract.lazy import lazy
from contract.references.rms_norm import rms_norm as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

GAINED = {"gain": ("w", "1+w")}
RSQRT = "CUDA C++ Programming Guide, single-precision functions: rsqrtf at most 2 ulp; 1 / sqrt(x) in two roundings is inside"


# The width of the rows whose outputs are infinities: under float32 they alone are exact, and a store that truncates gives
# the largest value there.
OVERFLOWING = 32


def _overflowing(rng: Any, rows: int) -> Any:
    """A quarter of the columns +-2^k, the others zero: normalised to +-2, which the gain carries beyond the range."""
    x = np.exp2(rng.integers(-4, 5, (rows, 1))) * np.where(
        rng.random((rows, OVERFLOWING)) < 0.5, -1.0, 1.0
    )
    for row in x:
        row[rng.choice(OVERFLOWING, 3 * OVERFLOWING // 4, replace=False)] *= 0.0
    largest = float.fromhex("0x1.fep127")
    return {"x": x, "weight": np.where(rng.random(OVERFLOWING) < 0.5, -largest, largest)}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: squares that sum exactly in every order, significands full before and after the gain.

    Integers of 8 bits times a power of two per row: the squares are multiples of its square, and their sum stays below
    2^24 of it while d <= 256; wider rows keep 256 of them and are zero elsewhere.
    """
    rows, d = shape["rows"], shape["d"]
    if d == OVERFLOWING:
        return _overflowing(rng, rows)
    x = full_significands(rng, (rows, d)) * np.exp2(rng.integers(-12, 12, (rows, 1)))
    if d > 256:
        keep = np.zeros((rows, d), bool)
        for row in keep:
            row[rng.choice(d, 256, replace=False)] = True
        x = np.where(keep, x, np.copysign(0.0, x))
    # one magnitude per row in a quarter of them: the inverse is a power of two but for eps
    x[::4] = np.copysign(np.exp2(rng.integers(-6, 6, (len(x[::4]), 1))), x[::4])
    # 1 + w needs 11 bits, and is no tie of bf16
    unit = 1024.0 if parameters["gain"] == "1+w" else 128.0
    return {"x": x, "weight": full_significands(rng, (d,)) / unit}


rms_norm = register(
    Contract(
        name="rms_norm",
        family="norms",
        summary="RMS normalisation of each row, with a gain",
        reference=reference,
        operands=(
            tensor("x", "rows d"),
            tensor("weight", "d", typical=near_one, when=GAINED),
            output("out", "rows d"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        parameters={"gain": ("w", "1+w", "none")},
        profiles=(
            Profile(
                "once",
                {"normed": None, "out": "bf16"},
                users="torch F.rms_norm, Gemma, Gemma 4, Qwen3.5",
            ),
            Profile(
                "two_step",
                {"normed": "bf16", "out": "bf16"},
                when=GAINED,
                users="MLX, Qwen3, Qwen3-VL, Llama",
            ),
            Profile(
                "float32",
                {"normed": None, "out": "fp32"},
                {"x": "fp32", "weight": "fp32", "out": "fp32"},
                users="normalisation inside fp32 chains",
                vacuous={"out,gain=none": "the 2 ulps of rsqrt hide how the last bit is rounded"},
                not_applicable={
                    "exact,gain=none": "rsqrt within 2 fp32 ulps leaves no fp32 output one value but 0"
                },
            ),
        ),
        row_dims=("rows",),
        shapes=model_shapes(),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=(*EXACT, {"d": OVERFLOWING, "rows": 16}),
        freedoms={"mean": "any order of the sum: a proof, Higham section 4.2", "rsqrt": RSQRT},
    )
)


@implementation("rms_norm", name="torch", profile=("once", "two_step", "float32"))
def rms_norm_torch(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float, gain: str, profile: str
) -> torch.Tensor:
    """fp32 inside; the normalised row is rounded to x's format before the gain under two_step."""
    wide = x.float()
    normed = wide * inverse_root(wide, eps)
    if profile == "two_step":
        normed = normed.to(x.dtype)
        if weight is not None and gain == "w":
            # a product of the format's own, rounded once
            return normed * weight
        normed = normed.float()
    if weight is not None:
        normed = normed * (1.0 + weight.float() if gain == "1+w" else weight.float())
    return normed.to(x.dtype)


def inverse_root(wide: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + eps) of each fp32 row, (..., 1)."""
    return (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
