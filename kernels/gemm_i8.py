"""Product of int8 codes with its scales: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.products import tail_of
from contract.lazy import lazy
from contract.references.gemm_i8 import gemm_i8 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

# Terms of 121^2 to 127^2 whose running sum passes 2^24, and as many of the other sign.
HIGH = 1400
CONVERSION = "int32 to fp32: I2F rounds to nearest; fp64 epilogues keep the sum"


def step_sizes(rng: Any, shape: tuple[int, ...]) -> Any:
    """Values of one code, as a calibration finds them: a fraction of a percent to a few percent."""
    return np.exp(rng.uniform(-6.0, -3.0, shape))


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Codes of the whole range, -128 against -128 in one row, and small ones (ties) in a third of the rows.

    Where the sum is wide enough, the others pass 2^24 at odd numbers and come back: an fp32 accumulator does not.
    """
    rows, n, k = shape["rows"], shape["n"], shape["k"]
    x = rng.integers(-128, 128, (rows, k)).astype(np.float64)
    weight = rng.integers(-128, 128, (n, k)).astype(np.float64)
    if k > 2 * HIGH:
        weight[:, : 2 * HIGH] = rng.integers(121, 128, (n, 2 * HIGH))
        weight[:, HIGH : 2 * HIGH] = -weight[:, :HIGH]
        weight[:, 2 * HIGH :] = rng.integers(1, 8, (n, k - 2 * HIGH))
        x[1::2, : 2 * HIGH] = rng.integers(121, 128, (len(x[1::2]), 2 * HIGH))
        x[1::2, HIGH : 2 * HIGH] = x[1::2, :HIGH]
        x[1::2, 2 * HIGH :] = rng.integers(1, 8, (len(x[1::2]), k - 2 * HIGH))
    else:
        # pairs of 2^15, then pairs of -127 * 2^8: what saturates on the way shows in a result of few bits
        tail = tail_of(k)
        half = (k - tail) // 2
        x[0, : k - tail], weight[0, :half], weight[0, half : k - tail] = -128.0, -128.0, 127.0
        x[0, k - tail :], weight[0, k - tail :] = -29.0, 2.0
        x[1::3] = rng.integers(-3, 4, (len(x[1::3]), k))
    # ties need powers of two; scales of 24 bits, whose product is rounded, where the codes are few
    power = np.exp2(rng.integers(-9, 3, (n,)))
    full = np.abs(full_significands(rng, (n + 2,), 24)) * 2.0**-24 if k < 16 else np.ones(n + 2)
    return {
        "x": x,
        "weight": weight,
        "x_scale": np.asarray(full[0] * 2.0**-5),
        "w_scale": np.asarray(full[1] * 2.0**-4),
        "w_scales": full[2:] * power,
    }


TENSOR, CHANNEL = {"granularity": ("tensor",)}, {"granularity": ("channel",)}

gemm_i8 = register(
    Contract(
        name="gemm_i8",
        family="linear",
        summary="int8 product with an exact int32 sum, scaled per tensor or per output channel",
        reference=reference,
        operands=(
            tensor("x", "rows k", "int8"),
            tensor("weight", "n k", "int8"),
            tensor("x_scale", "", "fp32", typical=step_sizes),
            tensor("w_scale", "", "fp32", typical=step_sizes, when=TENSOR),
            tensor("w_scales", "n", "fp32", typical=step_sizes, when=CHANNEL),
            output("out", "rows n"),
        ),
        parameters={"granularity": ("tensor", "channel")},
        profiles=(
            Profile("once", {"scale": None, "out": "bf16"}, users="int8 layers of bf16 models"),
            Profile(
                "float16",
                {"scale": None, "out": "fp16"},
                {"out": "fp16"},
                when=TENSOR,
                users="PaliGemma INT8 on an fp16 stream",
            ),
            Profile(
                "float32",
                {"scale": "fp32", "out": "fp32"},
                {"out": "fp32"},
                users="torch._int_mm and an fp32 scale; FixedPoint32 streams",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # PaliGemma and SigLIP INT8: a whole projection, tiles of the others and of the 16384 wide MLP
        shapes=(
            {"rows": 16, "k": 1152, "n": 64},
            {"rows": 1, "k": 1152, "n": 1152},
            {"rows": 64, "k": 2048, "n": 24},
            {"rows": 4, "k": 16384, "n": 4},
        ),
        awkward=(
            {"rows": 1, "k": 1, "n": 1},
            {"rows": 3, "k": 517, "n": 5},
            {"rows": 17, "k": 65, "n": 33},
        ),
        stress=({"k": 64, "n": 8}, {"k": 5, "n": 3}, {"k": 257, "n": 4}, {"k": 2, "n": 2}),
        exact=exact_rows,
        exact_shapes=(
            {"k": 65, "n": 24},
            {"k": 9, "n": 24},
            {"k": 2 * HIGH + 33, "n": 24, "rows": 16},
        ),
        rules={"k is below 2^17, so that no int32 sum overflows": lambda s: s["k"] < 2**17},
        invariant=("batch", "layout", "launch"),
    )
)


@implementation("gemm_i8", name="torch", profile=("once", "float16", "float32"))
def gemm_i8_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """torch._int_mm, then one fp32 product with the scale."""
    steps = w_scale if w_scales is None else w_scales
    assert steps is not None
    return (torch._int_mm(x, weight.T) * (x_scale * steps)).to(stored_type(profile))


def stored_type(profile: str) -> torch.dtype:
    """The dtype of the result."""
    return {"once": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[profile]
