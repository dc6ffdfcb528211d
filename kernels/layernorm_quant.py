"""Layer norm, then int8 codes: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import near_one, near_zero
from contract.kernels.layer_norm import exact_rows as exact_norms
from contract.kernels.layer_norm import layer_norm
from contract.kernels.static_int8 import SCALE, check_scale, static_codes
from contract.lazy import lazy
from contract.references.layernorm_quant import layernorm_quant as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: rows whose mean is exactly 0, and constant rows, whose codes are those of the bias.

    In half of the columns the bias is an odd multiple of 1/64, a tie where the scale is 1/32; in the others +-w + b is
    one, which rows of one magnitude give but for eps, and exactly where bf16 lies between.
    """
    values = dict(exact_norms(rng, shape, scalars, parameters))
    d = shape["d"]
    weight = rng.integers(32, 64, d) * 2.0
    bias = 2.0 * rng.integers(-60, 60, d) + 1.0
    other = rng.random(d) < 0.5
    values["weight"] = np.where(other, weight + 1.0, weight) / 64.0
    values["bias"] = np.where(other, bias + 1.0, bias) / 64.0
    return values


layernorm_quant = register(
    Contract(
        name="layernorm_quant",
        family="quantize",
        summary="layer norm, then int8 codes with a given scale",
        reference=reference,
        operands=(
            tensor("x", "rows d", finite=True),
            tensor("weight", "d", typical=near_one, finite=True),
            tensor("bias", "d", typical=near_zero, finite=True),
            output("codes", "rows d", "int8"),
        ),
        scalars=(Scalar("eps", (1e-6,)), SCALE),
        profiles=(
            Profile(
                "fused",
                {"normed": None, "scaled": None, "out": None, "code": "int8"},
                users="PaliGemma INT8's SigLIP tower: one kernel, nothing rounded between",
            ),
            Profile(
                "bf16_between",
                {"normed": None, "scaled": None, "out": "bf16", "code": "int8"},
                users="a norm in bf16 and a quantiser after it",
            ),
        ),
        row_dims=("rows",),
        # SigLIP's 1,152
        shapes=({"rows": 1, "d": 1_152}, {"rows": 64, "d": 1_152}),
        awkward=({"rows": 3, "d": 1}, {"rows": 5, "d": 517}, {"rows": 17, "d": 1_025}),
        stress=({"d": 64}, {"d": 5}, {"d": 257}, {"d": 512}, {"d": 3}),
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 16}, {"d": 1_024, "rows": 16}),
        freedoms={name: layer_norm.freedoms[name] for name in ("mean", "variance", "rsqrt")},
    )
)


@implementation("layernorm_quant", name="torch", profile=("fused", "bf16_between"))
def layernorm_quant_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """Two passes in fp32.

    Raises:
        ValueError: a scale that is not positive.
    """
    y = layer_normed(x, weight, bias, eps)
    if profile == "bf16_between":
        y = y.to(x.dtype).float()
    return static_codes(y, check_scale(scale))


def layer_normed(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """(x - m) / sqrt(v + eps) w + b of each row, in fp32."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return torch.addcmul(bias.float(), centred * inverse, weight.float())
