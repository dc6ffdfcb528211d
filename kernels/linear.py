"""Dense layer: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_zero
from contract.kernels.products import (
    CHUNK,
    DOT,
    cancelling_operands,
    overflowing_rows,
    product,
    scaled_weight,
)
from contract.lazy import lazy
from contract.orders import Chunks
from contract.references.linear import linear as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

ONE_ORDER = "a bias that is added last, without a rounding before it, is one order of the sum"
# A layer without one passes zeros where only the biased kernel is judged: a zero sum's sign is free anyway.
BIASED = {"bias_term": ("yes",)}
HALF = {"x": "fp16", "weight": "fp16", "bias": "fp16", "out": "fp16"}
SINGLE = {"x": "fp32", "weight": "fp32", "bias": "fp32", "out": "fp32"}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Integers: running sums beyond 2^21, results of up to 14 bits, ties among them; every eighth row overflows."""
    rows, n, k = shape["rows"], shape["n"], shape["k"]
    x, weight = cancelling_operands(rng, rows, n, k)
    bias = full_significands(rng, (n,), 8)
    overflowing_rows(x)
    # powers of two per output, and per row where no bias holds it down
    power = np.exp2(rng.integers(-2, 3, (n,)))
    if parameters["bias_term"] == "no":
        x *= np.exp2(rng.integers(-3, 1, (rows, 1)))
    return {"x": x, "weight": weight * power[:, None], "bias": bias * power}


linear = register(
    Contract(
        name="linear",
        family="linear",
        summary="dense layer x W^T + b",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("weight", "n k", typical=scaled_weight),
            tensor("bias", "n", typical=near_zero, when=BIASED),
            output("out", "rows n"),
        ),
        parameters={"bias_term": ("yes", "no")},
        options={"added": ("inside", "after")},
        profiles=(
            Profile(
                "once",
                {"product": None, "out": "bf16"},
                options={"added": "inside"},
                vacuous={"added": ONE_ORDER},
                users="torch F.linear, cuBLAS epilogues: one rounding",
            ),
            Profile(
                "bias_after",
                {"product": "bf16", "out": "bf16"},
                options={"added": "after"},
                when=BIASED,
                users="x @ W.T + b; torch F.linear on the CPU for three-dimensional rows with gaps",
            ),
            Profile(
                "float16",
                {"product": None, "out": "fp16"},
                HALF,
                options={"added": "inside"},
                vacuous={"added": ONE_ORDER},
                when=BIASED,
                users="torch F.linear in fp16: SigLIP's patch projection, dequantised W4 weights",
            ),
            Profile(
                "float32",
                {"product": None, "out": "fp32"},
                SINGLE,
                options={"added": "inside"},
                vacuous={"added": ONE_ORDER},
                users="torch F.linear in fp32 with tf32 off",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # SigLIP: a whole projection of 1152 x 1152; tiles of the patches' (588) and of an MLP's (4304), which would take
        # minutes whole
        shapes=(
            {"rows": 16, "k": 588, "n": 24},
            {"rows": 128, "k": 588, "n": 48},
            {"rows": 6, "k": 4304, "n": 6},
            {"rows": 1, "k": 1152, "n": 1152},
        ),
        awkward=(
            {"rows": 1, "k": 1, "n": 1},
            {"rows": 3, "k": 517, "n": 5},
            {"rows": 67, "k": 65, "n": 133},
        ),
        stress=(
            {"k": 64, "n": 16},
            {"k": 5, "n": 24},
            {"k": 257, "n": 12},
            {"k": 2, "n": 24},
            {"k": 16, "n": 17},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"k": 225, "n": 24},
            {"k": 48, "n": 9},
            {"k": 1153, "n": 5, "rows": 9},
        ),
        freedoms={"dot": DOT},
    )
)


@implementation(
    "linear",
    name="torch",
    profile=("once", "bias_after", "float16", "float32"),
    order={"dot": Chunks(CHUNK)},
)
def linear_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """fp32 products of CHUNK columns each, added one after the other to the bias (or, bias_after, without it)."""
    after = profile == "bias_after"
    start = None if after or bias is None else bias.float()
    total = product(x, weight, start)
    if after and bias is not None:
        total = total.to(x.dtype).float() + bias.float()
    return total.to(x.dtype)
