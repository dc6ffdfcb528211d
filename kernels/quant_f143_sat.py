"""Saturating fp8 quantiser with a power-of-two scale: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.formats import FORMATS
from contract.kernels.data import AWKWARD, STRESS
from contract.kernels.gemm_f143 import exponent_of
from contract.lazy import lazy
from contract.references.quant_f143_sat import CLIPPED
from contract.references.quant_f143_sat import quant_f143_sat as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

F143 = FORMATS["e4m3fnuz"]
# The last values that a row's first columns hold in turn, in units of the scale.
SPECIALS = (
    np.inf,
    -np.inf,
    np.nan,
    0.0,
    -0.0,
    240.0,
    -244.0,
    247.0,
    248.0,
    -248.0,
    256.0,
    -(2.0**-12),
)


def wide(rng: Any, shape: tuple[int, ...]) -> Any:
    """Values of which a few are clipped at the scales below."""
    return 100.0 * rng.standard_normal(shape, dtype=np.float32)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Codes, halfway points and what lies beside them in the source's precision; ends and specials."""
    size = (shape["rows"], shape["d"])
    # one bit more than a code holds: half of them are ties; subnormal codes end at 2^-10
    significand = rng.integers(16, 32, size).astype(np.float64)
    x = np.ldexp(significand, rng.integers(F143.emin - 4, 9, size) - 4)
    x *= 1.0 + 2.0 ** (1 - FORMATS[parameters["source"]].precision) * rng.integers(-1, 2, size)
    x *= np.where(rng.random(size) < 0.5, -1.0, 1.0)
    x[:, 0] = np.resize(SPECIALS, len(x))
    return {"x": x * 2.0 ** scalars["k"]}


quant_f143_sat = register(
    Contract(
        name="quant_f143_sat",
        family="quantize",
        summary="fp8 (e4m3fnuz) codes with a power-of-two scale, saturating, and how many were clipped",
        reference=reference,
        operands=(
            tensor("x", "rows d", "{source}", typical=wide),
            output("codes", "rows d", "e4m3fnuz"),
            output("clipped", "rows", "int32"),
        ),
        scalars=(Scalar("k", (-1.0, -2.0, 1.0, -12.0)),),
        parameters={"source": ("fp16", "bf16", "fp32")},
        profiles=(
            Profile(
                "saturate",
                {"code": "e4m3fnuz", "count": "int32"},
                overflow={"code": "saturate"},
                vacuous={"count": "a count is an integer below 2^24: no rounding moves it"},
                users="SigLIP F143; gfloat with sat=True",
            ),
        ),
        row_dims=("rows",),
        shapes=({"rows": 16, "d": 1152}, {"rows": 128, "d": 1152}, {"rows": 16, "d": 4304}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 5}, {"d": 1024, "rows": 12}),
        freedoms={"count": "integers below 2^24 sum exactly in any order"},
        invariant=("batch", "layout", "launch"),
    )
)


@implementation("quant_f143_sat", name="torch", profile="saturate")
def quant_f143_sat_torch(x: torch.Tensor, *, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Clamped before torch's conversion, which has no overflow policy of its own but NaN."""
    scaled = x.float() * 2.0 ** -exponent_of(k)
    clipped = (scaled.abs() >= CLIPPED).sum(-1, dtype=torch.int32)
    return scaled.clamp(-F143.max, F143.max).to(torch.float8_e4m3fnuz), clipped
