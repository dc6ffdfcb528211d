"""Rows times a four-bit weight that is dequantised first: contract and torch implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.packing import checked_scales, nibbles_of
from contract.kernels.w4_gemv import (
    ASYMMETRIC,
    CHUNK,
    DOT,
    RULES,
    SYMMETRIC,
    exact_rows,
    random_words,
    sized,
    weight_scales,
)
from contract.lazy import lazy
from contract.references.w4_gemm import w4_gemm as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

w4_gemm = register(
    Contract(
        name="w4_gemm",
        family="linear",
        summary="rows times a weight of four-bit codes, dequantised to the format of the rows",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("words", "n words", "int32", typical=random_words),
            tensor("scales", "n groups", typical=weight_scales, finite=True, when=SYMMETRIC),
            tensor("scales", "n blocks", typical=weight_scales, finite=True, when=ASYMMETRIC),
            tensor("zeros", "n blocks", "uint4", when=ASYMMETRIC),
            output("out", "rows n"),
        ),
        parameters={"block": ("32", "128")},
        profiles=(
            Profile(
                "bf16",
                {"weight": "bf16", "out": "bf16"},
                when=SYMMETRIC,
                users="AWQ checkpoints in compressed-tensors",
            ),
            Profile(
                "fp16",
                {"weight": "fp16", "out": "fp16"},
                {"x": "fp16", "scales": "fp16", "out": "fp16"},
                when=ASYMMETRIC,
                users="Qwen3-VL W4A16 prefill, Marlin and AWQ kernels in fp16",
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # the inputs of SigLIP's and Qwen3-VL 2B's layers, a few of their outputs (as in w4_gemv)
        shapes=(sized(rows=16, n=48, k=1152), sized(rows=64, n=64, k=2048)),
        awkward=(
            sized(rows=1, n=1, k=128),
            sized(rows=3, n=5, k=384),
            sized(rows=67, n=133, k=384),
        ),
        # enough outputs that the 200-bit audit, which costs a microsecond a weight, is done before the wide shapes
        stress=(sized(n=50, k=128), sized(n=50, k=128), sized(n=50, k=128), sized(n=50, k=256)),
        exact=exact_rows,
        # 17 rows: one past a tile of 16
        exact_shapes=(sized(n=48, k=384, rows=17), sized(n=60, k=640, rows=4)),
        rules=RULES,
        freedoms={"dot": DOT},
    )
)


@implementation("w4_gemm", name="torch", profile=("bf16", "fp16"))
def w4_gemm_torch(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    block: str,
) -> torch.Tensor:
    """A few outputs' weights at a time are dequantised to x's format; products and sums in fp32."""
    checked_scales(scales, x.shape[1], int(block))
    wide = x.float()
    parts = []
    for first in range(0, len(words), CHUNK):
        at = slice(first, first + CHUNK)
        weight = dequantised(words[at], scales[at], None if zeros is None else zeros[at])
        parts.append(wide @ weight.to(x.dtype).float().t())
    return torch.cat(parts, 1).to(x.dtype)


def dequantised(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
) -> torch.Tensor:
    """(q - z) s in fp32, (n, k): 13 or 16 bits, exact."""
    n, groups = scales.shape
    codes = nibbles_of(words).reshape(n, groups, -1).float()
    zero = 8.0 if zeros is None else zeros.float()[..., None]
    return ((codes - zero) * scales.float()[..., None]).reshape(n, -1)
