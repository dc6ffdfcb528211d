"""Output head on one row of each sequence: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
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
from contract.references.lm_head import lm_head as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """The rows of a dense layer at drawn positions; the other positions hold other integers, or NaN."""
    rows, t, n, k = shape["rows"], shape["t"], shape["n"], shape["k"]
    kept, weight = cancelling_operands(rng, rows, n, k)
    overflowing_rows(kept)
    last = rng.integers(0, t, rows)
    x = full_significands(rng, (rows, t, k))
    x[::2] = np.nan
    x[np.arange(rows), last] = kept
    return {"x": x, "weight": weight * np.exp2(rng.integers(-2, 3, (n, 1))), "last": last}


lm_head = register(
    Contract(
        name="lm_head",
        family="linear",
        summary="logits of one position of each sequence",
        reference=reference,
        operands=(
            tensor("x", "rows t k"),
            tensor("weight", "n k", typical=scaled_weight),
            tensor("last", "rows", "int32", below="t"),
            output("out", "rows n"),
        ),
        profiles=(
            Profile("once", {"out": "bf16"}, users="transformers: logits in the model's dtype"),
            Profile(
                "fp32_logits",
                {"out": "fp32"},
                {"out": "fp32"},
                users="samplers that read the accumulator; vLLM, llama.cpp",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # Qwen3-VL and PaliGemma are 2048 wide; a tile of their vocabularies of 151936 and 257216
        shapes=(
            {"rows": 2, "t": 16, "k": 576, "n": 48},
            {"rows": 4, "t": 5, "k": 2048, "n": 12},
            {"rows": 1, "t": 4, "k": 2048, "n": 512},
            {"rows": 24, "t": 16, "k": 576, "n": 32},
        ),
        awkward=(
            {"rows": 1, "t": 1, "k": 1, "n": 1},
            {"rows": 3, "t": 4, "k": 517, "n": 5},
            {"rows": 5, "t": 9, "k": 65, "n": 33},
        ),
        stress=(
            {"t": 3, "k": 64, "n": 8},
            {"t": 2, "k": 5, "n": 3},
            {"t": 4, "k": 129, "n": 4},
            {"t": 1, "k": 2, "n": 2},
        ),
        exact=exact_rows,
        exact_shapes=({"t": 4, "k": 225, "n": 24, "rows": 32}, {"t": 3, "k": 48, "n": 9}),
        freedoms={"dot": DOT},
    )
)


@implementation(
    "lm_head", name="torch", profile=("once", "fp32_logits"), order={"dot": Chunks(CHUNK)}
)
def lm_head_torch(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The kept rows are gathered first: nothing else is read.

    Raises:
        ValueError: a position outside the sequence.
    """
    if bool(((last < 0) | (last >= x.shape[1])).any()):
        raise ValueError(f"last = {last.tolist()}; positions are 0 to {x.shape[1] - 1}")
    kept = x[torch.arange(x.shape[0], device=x.device), last.long()]
    total = product(kept, weight, None)
    return total if profile == "fp32_logits" else total.to(x.dtype)
