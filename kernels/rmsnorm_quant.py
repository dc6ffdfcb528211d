"""RMS norm with gain 1 + w, then int8 codes: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.add_rms_tail import normed
from contract.kernels.data import near_zero
from contract.kernels.rms_norm import RSQRT
from contract.kernels.rms_norm import exact_rows as exact_norms
from contract.kernels.static_int8 import SCALE, check_scale, static_codes
from contract.lazy import lazy
from contract.references.rmsnorm_quant import rmsnorm_quant as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: rows whose squares sum exactly in every order. Under bf16_between a quarter of the quotients by a
    power of two are ties; wide rows of few values reach beyond code 127."""
    return exact_norms(rng, shape, scalars, {"gain": "1+w"})


rmsnorm_quant = register(
    Contract(
        name="rmsnorm_quant",
        family="quantize",
        summary="RMS norm with gain 1 + w, then int8 codes with a given scale",
        reference=reference,
        operands=(
            tensor("x", "rows d", finite=True),
            tensor("weight", "d", typical=near_zero, finite=True),
            output("codes", "rows d", "int8"),
        ),
        scalars=(Scalar("eps", (1e-6,)), SCALE),
        profiles=(
            Profile(
                "fused",
                {"normed": None, "out": None, "code": "int8"},
                users="PaliGemma INT8: one kernel, nothing rounded between",
            ),
            Profile(
                "bf16_between",
                {"normed": None, "out": "bf16", "code": "int8"},
                users="a norm in bf16 and a quantiser after it",
            ),
        ),
        row_dims=("rows",),
        # Gemma's 2,048
        shapes=({"rows": 1, "d": 2_048}, {"rows": 128, "d": 2_048}),
        awkward=({"rows": 3, "d": 1}, {"rows": 5, "d": 517}, {"rows": 17, "d": 1_025}),
        stress=({"d": 64}, {"d": 5}, {"d": 257}, {"d": 512}, {"d": 3}),
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 16}, {"d": 2_048, "rows": 16}),
        freedoms={"mean": "any order of the sum: a proof, Higham section 4.2", "rsqrt": RSQRT},
    )
)


@implementation("rmsnorm_quant", name="torch", profile=("fused", "bf16_between"))
def rmsnorm_quant_torch(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """fp32 inside.

    Raises:
        ValueError: a scale that is not positive.
    """
    y = normed(x.float(), 1.0 + weight.float(), eps)
    if profile == "bf16_between":
        y = y.to(x.dtype).float()
    return static_codes(y, check_scale(scale))
