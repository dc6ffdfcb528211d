"""Product of fp8 codes with power-of-two scales: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.products import CHUNK, DOT, cancelling_operands, pairs_of, product
from contract.lazy import lazy
from contract.orders import Chunks
from contract.references.gemm_f143 import gemm_f143 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exponent_of(k: float) -> int:
    """A scale's exponent as the metadata holds it, in 6 bits.

    Raises:
        ValueError: no integer of -32 .. 31.
    """
    if k != int(k) or not -32 <= k <= 31:
        raise ValueError(f"scale exponent {k!r}: an integer in -32 .. 31")
    return int(k)


def codes(rng: Any, shape: tuple[int, ...]) -> Any:
    """Values of calibrated operands: the largest of a few thousand is near 240."""
    return np.clip(64.0 * rng.standard_normal(shape, dtype=np.float32), -240.0, 240.0)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Codes of full significands up to 240, running sums of more than 20 bits; a third of the rows has subnormal codes."""
    rows, n, k = shape["rows"], shape["n"], shape["k"]
    x, weight = cancelling_operands(rng, rows, n, k, ((4, 4),))
    # every other pair 256 times the next one: large sums with their low bits in use
    pairs = pairs_of(k)
    large = np.ones(k)
    large[0:pairs:2] = large[pairs : 2 * pairs : 2] = 16.0
    x, weight = x * large, weight * large
    # 1 .. 7 times 2^-10 are the subnormal codes
    x *= np.where(np.arange(rows) % 3 == 0, 2.0**-10, np.exp2(rng.integers(-4, 1, rows)))[:, None]
    weight *= np.exp2(rng.integers(-6, 1, (n, 1)))
    return {"x": x, "weight": weight}


gemm_f143 = register(
    Contract(
        name="gemm_f143",
        family="linear",
        summary="fp8 (e4m3fnuz) product with power-of-two scales and an fp32 sum",
        reference=reference,
        operands=(
            tensor("x", "rows k", "e4m3fnuz", typical=codes),
            tensor("weight", "n k", "e4m3fnuz", typical=codes),
            output("out", "rows n", "fp16"),
        ),
        # shared operand scales of SigLIP's layers: -2, -4, 1, -1, -12
        scalars=(Scalar("k_a", (-2.0, -4.0, 1.0, -1.0)), Scalar("k_w", (-5.0, -12.0, -3.0))),
        profiles=(
            Profile("float16", {"out": "fp16"}, users="SigLIP F143 on an fp16 stream"),
            Profile("once", {"out": "bf16"}, {"out": "bf16"}, users="fp8 layers of bf16 models"),
        ),
        row_dims=("rows",),
        column_dim="n",
        # SigLIP: the pooling query's projection whole, tiles of the others
        shapes=(
            {"rows": 16, "k": 1152, "n": 24},
            {"rows": 1, "k": 1152, "n": 1152},
            {"rows": 64, "k": 1152, "n": 48},
            {"rows": 6, "k": 4304, "n": 6},
        ),
        awkward=(
            {"rows": 1, "k": 1, "n": 1},
            {"rows": 3, "k": 517, "n": 5},
            {"rows": 17, "k": 65, "n": 33},
        ),
        stress=({"k": 64, "n": 8}, {"k": 5, "n": 3}, {"k": 257, "n": 4}, {"k": 2, "n": 2}),
        exact=exact_rows,
        exact_shapes=({"k": 225, "n": 24}, {"k": 48, "n": 9}, {"k": 1153, "n": 5, "rows": 9}),
        freedoms={"dot": DOT},
    )
)


@implementation(
    "gemm_f143", name="torch", profile=("float16", "once"), order={"dot": Chunks(CHUNK)}
)
def gemm_f143_torch(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """fp32 products of the decoded values, chunk by chunk, and one product with the power of two."""
    power = 2.0 ** (exponent_of(k_a) + exponent_of(k_w))
    stored = torch.float16 if profile == "float16" else torch.bfloat16
    return (product(x, weight, None) * power).to(stored)
