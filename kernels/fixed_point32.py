"""Conversion to FixedPoint32: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import AWKWARD, STRESS
from contract.lazy import lazy
from contract.references.fixed_point32 import fixed_point32 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

CHECKED = {"overflow": ("assert_fits",)}


def near_the_range(rng: Any, shape: tuple[int, ...]) -> Any:
    """Residuals of a few thousand: one in a hundred does not fit with 16 fraction bits."""
    return 6000.0 * rng.standard_normal(shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Codes and eighths of codes (ties and what lies beside them), both ends of the range; half of the rows fit."""
    size = (shape["rows"], shape["d"])
    unit = 2.0 ** -int(parameters["frac"])
    x = rng.integers(-(2**22), 2**22, size) * 0.125 * unit
    edge = np.resize(
        [2.0**31, -(2.0**31), 2.0**31 - 128.0, -(2.0**31) - 256.0, 2.0**40],
        (shape["rows"] + 1) // 2,
    )
    x[::2, -1] = edge * unit
    return {"x": x}


fixed_point32 = register(
    Contract(
        name="fixed_point32",
        family="quantize",
        summary="int32 codes of value * 2^frac, saturating, with a flag per row where asked",
        reference=reference,
        operands=(
            tensor("x", "rows d", "fp32", typical=near_the_range, finite=True),
            output("codes", "rows d", "int32"),
            output("fits", "rows", "uint8", when=CHECKED),
        ),
        parameters={"frac": ("16", "8", "24"), "overflow": ("saturate", "assert_fits")},
        profiles=(
            Profile(
                "fx32",
                {"code": "int32", "fits": "uint8"},
                overflow={"code": "saturate", "fits": "saturate"},
                users="the NPU's residual stream",
                vacuous={"truncate-fits": "a flag is 0 or 1 before it is stored"},
            ),
        ),
        row_dims=("rows",),
        shapes=({"rows": 1, "d": 2048}, {"rows": 128, "d": 2048}, {"rows": 1028, "d": 2048}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 1024, "rows": 16}),
    )
)


@implementation("fixed_point32", name="torch", profile="fx32")
def fixed_point32_torch(
    x: torch.Tensor, *, frac: str, overflow: str
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """fp64 inside: fp32 cannot hold the largest code, and a clamp to it would be one too far."""
    scaled = (x.double() * 2.0 ** int(frac)).round()
    codes = scaled.clamp(-(2.0**31), 2.0**31 - 1).to(torch.int32)
    if overflow == "saturate":
        return codes
    return codes, ((scaled >= -(2.0**31)) & (scaled <= 2.0**31 - 1)).all(-1).to(torch.uint8)


def assert_fits(x: torch.Tensor, frac: int) -> torch.Tensor:
    """The codes of a tensor that fits.

    Raises:
        OverflowError: names the first row that does not, the largest magnitude and the range.
    """
    codes, fits = fixed_point32_torch(x, frac=str(frac), overflow="assert_fits")
    if not bool(fits.all()):
        row = int(fits.argmin())
        limit = 2.0 ** (31 - frac)
        raise OverflowError(
            f"row {row} holds {float(x[row].abs().max())!r}, beyond +-{limit!r} with {frac} fraction bits"
        )
    return codes
