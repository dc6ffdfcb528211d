"""Embedding rows from an int8 table with one scale per row: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.embed import every_id
from contract.lazy import lazy
from contract.references.embed_i8 import embed_i8 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def row_scales(rng: Any, shape: tuple[int, ...]) -> Any:
    """max / 127 of rows of embeddings."""
    return rng.uniform(0.0002, 0.002, shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Scales of 11 bits: products of 19, rounded once. All codes occur, -128 among them."""
    codes = rng.integers(-128, 128, (shape["vocab"], shape["d"])).astype(np.float64)
    codes[:, 0], codes[:, -1] = -128.0, 127.0
    scales = full_significands(rng, (shape["vocab"],), 11)
    return {
        "ids": every_id(rng, shape),
        "codes": codes,
        "row_scales": scales * np.exp2(rng.integers(-14, -8, shape["vocab"])),
    }


embed_i8 = register(
    Contract(
        name="embed_i8",
        family="embedding",
        summary="rows of an int8 table times the scale of their row",
        reference=reference,
        operands=(
            tensor("ids", "rows", "int32", below="vocab"),
            tensor("codes", "vocab d", "int8"),
            tensor("row_scales", "vocab", "fp32", typical=row_scales),
            output("out", "rows d"),
        ),
        profiles=(
            Profile("once", {"out": "bf16"}, users="Qwen3.5 int8 embeddings"),
            Profile("fp16_scales", {"out": "bf16"}, {"row_scales": "fp16"}, users="fp16 scales"),
        ),
        row_dims=("rows",),
        shapes=(
            {"rows": 49, "vocab": 300, "d": 2560},
            {"rows": 1, "vocab": 64, "d": 2560},
            {"rows": 196, "vocab": 20, "d": 2560},
        ),
        awkward=({"rows": 3, "vocab": 1, "d": 1}, {"rows": 17, "vocab": 5, "d": 257}),
        stress=({"vocab": 13, "d": 64}, {"vocab": 13, "d": 5}, {"vocab": 2, "d": 129}),
        exact=exact_rows,
        exact_shapes=({"vocab": 9, "d": 64}, {"vocab": 33, "d": 257}),
    )
)


@implementation("embed_i8", name="torch", profile=("once", "fp16_scales"))
def embed_i8_torch(
    ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor
) -> torch.Tensor:
    """fp32 inside, one rounding."""
    scales = row_scales.index_select(0, ids).float()
    return (codes.index_select(0, ids).float() * scales[:, None]).bfloat16()


def check_embed_i8(codes: torch.Tensor, row_scales: torch.Tensor) -> None:
    """Refuse a table that is loaded.

    Raises:
        ValueError: codes that are no int8, as many scales as rows are not there, or a scale that is not finite.
    """
    if codes.dtype != torch.int8:
        raise ValueError(f"codes are {codes.dtype}; use torch.int8")
    if row_scales.shape != codes.shape[:1]:
        raise ValueError(f"{tuple(row_scales.shape)} scales for {codes.shape[0]} rows; one each")
    wrong = ~row_scales.isfinite()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"scale of row {row} is {float(row_scales[row])}")
