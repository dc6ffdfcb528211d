"""Gate and up products with SwiGLU behind them: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.products import CHUNK, DOT, cancelling_operands, product, scaled_weight
from contract.kernels.swiglu import EXP
from contract.lazy import lazy
from contract.orders import Chunks
from contract.references.linear_swiglu import linear_swiglu as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: exact products of 9 to 13 bits, the gates between 1 and 50 in magnitude."""
    n = shape["n"]
    x, weight = cancelling_operands(rng, shape["rows"], 2 * n, shape["k"], ((8, 8),))
    return {"x": x, "gate_weight": weight[:n] / 256.0, "up_weight": weight[n:] / 64.0}


linear_swiglu = register(
    Contract(
        name="linear_swiglu",
        family="linear",
        summary="gate and up projections with SwiGLU as their epilogue",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("gate_weight", "n k", typical=scaled_weight),
            tensor("up_weight", "n k", typical=scaled_weight),
            output("out", "rows n"),
        ),
        profiles=(
            Profile(
                "each",
                {
                    "gate": "bf16",
                    "up": "bf16",
                    "exp": None,
                    "sigmoid": None,
                    "silu": "bf16",
                    "out": "bf16",
                },
                users="Qwen3's and Llama's MLP in transformers: every module stores its result",
            ),
            Profile(
                "fused",
                {
                    "gate": None,
                    "up": None,
                    "exp": None,
                    "sigmoid": None,
                    "silu": None,
                    "out": "bf16",
                },
                users="fused kernels: both accumulators meet in registers",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # tiles of Qwen3-VL's MLP, 2048 to 6144
        shapes=(
            {"rows": 4, "k": 512, "n": 24},
            {"rows": 32, "k": 512, "n": 48},
            {"rows": 1, "k": 2048, "n": 64},
        ),
        awkward=(
            {"rows": 1, "k": 1, "n": 1},
            {"rows": 3, "k": 257, "n": 5},
            {"rows": 5, "k": 65, "n": 33},
        ),
        stress=({"k": 64, "n": 8}, {"k": 5, "n": 3}, {"k": 129, "n": 4}, {"k": 2, "n": 2}),
        exact=exact_rows,
        exact_shapes=({"k": 225, "n": 8}, {"k": 48, "n": 9}),
        freedoms={"dot": DOT, "exp": EXP},
    )
)


@implementation(
    "linear_swiglu", name="torch", profile=("each", "fused"), order={"dot": Chunks(CHUNK)}
)
def linear_swiglu_torch(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Two fp32 products and the activation; under each, every result goes through the storage format."""

    def kept(values: torch.Tensor) -> torch.Tensor:
        return values.to(x.dtype).float() if profile == "each" else values

    gate, up = kept(product(x, gate_weight, None)), kept(product(x, up_weight, None))
    return (kept(gate / (1.0 + torch.exp(-gate))) * up).to(x.dtype)
