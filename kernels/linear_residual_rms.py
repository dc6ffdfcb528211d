"""Product, residual sum and the next norm: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.add_rms_tail import MEAN, normed
from contract.kernels.data import full_significands, near_one
from contract.kernels.products import CHUNK, DOT, cancelling_operands, product, scaled_weight
from contract.kernels.rms_norm import RSQRT
from contract.lazy import lazy
from contract.orders import Chunks
from contract.references.linear_residual_rms import linear_residual_rms as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: exact products of 9 to 13 bits, a stream of 8, few outputs, so that most rows are one value."""
    rows, n = shape["rows"], shape["n"]
    x, weight = cancelling_operands(rng, rows, n, shape["k"], ((8, 8),))
    return {
        "x": x,
        "weight": weight,
        "residual": full_significands(rng, (rows, n)),
        "norm_weight": full_significands(rng, (n,)) / 128.0,
    }


linear_residual_rms = register(
    Contract(
        name="linear_residual_rms",
        family="linear",
        summary="projection, residual sum and the next RMS norm",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("weight", "n k", typical=scaled_weight),
            tensor("residual", "rows n"),
            tensor("norm_weight", "n", typical=near_one),
            output("total", "rows n", in_place_of="residual"),
            output("out", "rows n"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        options={"reads": ("stored", "unrounded")},
        profiles=(
            Profile(
                "each",
                {
                    "product": "bf16",
                    "branch": None,
                    "sum": None,
                    "total": "bf16",
                    "normed": None,
                    "out": "bf16",
                },
                options={"reads": "stored"},
                users="Qwen3 and Llama in transformers: every module stores its result",
            ),
            Profile(
                "fused",
                {
                    "product": None,
                    "branch": None,
                    "sum": None,
                    "total": "bf16",
                    "normed": None,
                    "out": "bf16",
                },
                options={"reads": "unrounded"},
                users="fused kernels: one pass in fp32, only what is stored is rounded",
            ),
        ),
        row_dims=("rows",),
        # small: the tail's own widths are those of add_rms_tail
        shapes=(
            {"rows": 4, "k": 512, "n": 96},
            {"rows": 32, "k": 256, "n": 64},
            {"rows": 1, "k": 1152, "n": 576},
        ),
        awkward=(
            {"rows": 3, "k": 1, "n": 1},
            {"rows": 3, "k": 257, "n": 5},
            {"rows": 5, "k": 65, "n": 33},
        ),
        stress=({"k": 64, "n": 8}, {"k": 5, "n": 3}, {"k": 129, "n": 4}, {"k": 2, "n": 2}),
        exact=exact_rows,
        exact_shapes=({"k": 225, "n": 8}, {"k": 48, "n": 16}),
        freedoms={"dot": DOT, "mean": MEAN, "rsqrt": RSQRT},
    )
)


@implementation(
    "linear_residual_rms", name="torch", profile=("each", "fused"), order={"dot": Chunks(CHUNK)}
)
def linear_residual_rms_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """An fp32 product with the tail in fp32; under each, every result goes through the storage format."""
    branch = product(x, weight, None)
    if profile == "each":
        stored = branch.to(x.dtype) + residual
        return stored, normed(stored.float(), norm_weight, eps).to(x.dtype)
    stream = branch + residual.float()
    return stream.to(x.dtype), normed(stream, norm_weight, eps).to(x.dtype)
