"""Sigmoid gate of an attention's output: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import activations, full_significands
from contract.lazy import lazy
from contract.references.attn_gate import attn_gate as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Gates of 1/2 (g = 0), of 1 and of ordinary values whose sigmoid is one bf16 value; o of full significands."""
    o = full_significands(rng, (shape["rows"], shape["heads"], shape["d"])) / 64.0
    gate = rng.choice((0.0, 40.0, 1.0, -1.0, 0.5, -2.0), o.shape)
    return {"o": o, "fused": np.concatenate([full_significands(rng, o.shape) / 64.0, gate], -1)}


def sizes(rows: int, heads: int, d: int) -> dict[str, int]:
    return {"rows": rows, "heads": heads, "d": d, "width": 2 * d}


attn_gate = register(
    Contract(
        name="attn_gate",
        family="attention",
        summary="sigmoid gate of an attention's output, from the fused query row",
        reference=reference,
        operands=(
            tensor("o", "rows heads d"),
            tensor("fused", "rows heads width", typical=activations),
            output("out", "rows heads d"),
        ),
        profiles=(Profile("each", {"gate": "bf16", "out": "bf16"}, users="Qwen3.5"),),
        row_dims=("rows",),
        # Qwen3.5: 16 heads of 256
        shapes=(sizes(1, 16, 256), sizes(16, 16, 256)),
        awkward=(sizes(3, 1, 1), sizes(5, 3, 17), sizes(2, 2, 72)),
        stress=tuple({"heads": h, "d": d, "width": 2 * d} for h, d in ((2, 16), (1, 5), (3, 33))),
        exact=exact_rows,
        exact_shapes=tuple({"heads": h, "d": d, "width": 2 * d} for h, d in ((2, 16), (4, 8))),
        freedoms={"exp": "CUDA expf and exp2f, glibc and SLEEF expf: at most 2 ulp"},
        rules={"width = 2 d": lambda s: s["width"] == 2 * s["d"]},
    )
)


@implementation("attn_gate", name="torch")
def attn_gate_torch(o: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
    """Two rounded steps."""
    return o * torch.sigmoid(fused[..., o.shape[-1] :].float()).to(o.dtype)
