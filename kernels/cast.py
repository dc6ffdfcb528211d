"""Conversion to a narrower format: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.formats import FORMATS, encode, round_to
from contract.kernels.data import AWKWARD, STRESS
from contract.lazy import lazy
from contract.references.cast import cast as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

TARGETS = ("bf16", "fp16", "e4m3fn", "e4m3fnuz", "e5m2")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: values of the target, halfway points, and their neighbours at the source's precision."""
    fmt = FORMATS[parameters["to"]]
    size = (shape["rows"], shape["d"])
    low, high = fmt.emin - fmt.precision, int(np.log2(fmt.max)) + 2
    # one bit more than the target holds: half of them are ties
    significand = rng.integers(1 << fmt.precision, 2 << fmt.precision, size).astype(np.float64)
    exponent = rng.integers(max(low, -130), min(high, 128), size) - fmt.precision
    x = np.ldexp(significand, exponent) * np.where(rng.random(size) < 0.5, -1.0, 1.0)
    beside = 2.0**-23 if parameters["source"] == "fp32" else 2.0**-45
    x *= 1.0 + beside * rng.integers(-1, 2, size)
    x[:, 0] = np.resize([np.inf, -np.inf, np.nan, 0.0, -0.0, fmt.max, -fmt.max], len(x))
    source = FORMATS[parameters["source"]]
    bits = encode(round_to(x, source), source)
    # a NaN whose payload lies in the low half alone: what is cut off there is an infinity
    return {"x": np.where(np.isnan(x), bits - bits % 2 ** (source.precision - 1) + 1, bits)}


cast = register(
    Contract(
        name="cast",
        family="quantize",
        summary="conversion to bf16, fp16 or fp8, rounded once, with each overflow policy",
        reference=reference,
        operands=(tensor("x", "rows d", "{source}"), output("out", "rows d", "{to}")),
        parameters={"source": ("fp32", "fp64"), "to": TARGETS},
        profiles=(
            Profile(
                "inf",
                {"out": "{to}"},
                overflow={"out": "inf"},
                when={"to": ("bf16", "fp16", "e5m2")},
                users="torch, NumPy",
                keeps_subnormals=True,
            ),
            Profile(
                "nan",
                {"out": "{to}"},
                overflow={"out": "nan"},
                when={"to": ("e4m3fn", "e4m3fnuz")},
                users="ml_dtypes; torch for e4m3fnuz",
                keeps_subnormals=True,
            ),
            Profile(
                "saturate",
                {"out": "{to}"},
                overflow={"out": "saturate"},
                when={"to": ("fp16", "e4m3fn", "e4m3fnuz", "e5m2")},
                users="torch for e4m3fn; the NPU's F143",
                keeps_subnormals=True,
            ),
        ),
        row_dims=("rows",),
        shapes=({"rows": 1, "d": 5376}, {"rows": 128, "d": 2048}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=({"d": 64}, {"d": 1024, "rows": 8}),
        column_dim="d",
        honest_nulls={
            "null-copy": "a copy of the input stored in the output's format is the conversion"
        },
    )
)


def torch_type(to: str) -> torch.dtype:
    """The dtype of a target."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3fn": torch.float8_e4m3fn,
            "e4m3fnuz": torch.float8_e4m3fnuz, "e5m2": torch.float8_e5m2}[to]  # fmt: skip


def to_odd_fp32(x: torch.Tensor) -> torch.Tensor:
    """fp64 to fp32 rounded to odd: what is then rounded to 11 bits or fewer is rounded as the fp64 value is."""
    near = x.to(torch.float32)
    back = near.to(torch.float64)
    bits = near.view(torch.int32)
    # toward zero first: one step down in magnitude where the rounding went up
    bits = bits - ((back.abs() > x.abs()) & ~x.isnan()).to(torch.int32)
    odd = torch.where(back != x, bits | 1, bits)
    return torch.where(x.isnan() | x.isinf(), near.view(torch.int32), odd).view(torch.float32)


@implementation("cast", name="torch", profile=("inf", "nan", "saturate"))
def cast_torch(x: torch.Tensor, *, to: str, source: str, profile: str) -> torch.Tensor:
    """torch's own conversion from fp32, which rounds once; the policy is put in front of it."""
    fmt = FORMATS[to]
    dtype = torch_type(to)
    wide = to_odd_fp32(x) if source == "fp64" else x
    if profile == "saturate":
        return wide.clamp(-fmt.max, fmt.max).to(dtype)
    if profile == "nan" and to == "e4m3fn":
        # halfway to the step that is not there rounds to even, which is the largest value
        wide = torch.where(wide.abs() > 464.0, torch.full_like(wide, torch.nan), wide)
    return wide.to(dtype)
