"""Dense layer: a Triton kernel of tiles on tensor cores, with fp32 accumulators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def gemm(
    x_at: tl.tensor,
    weight_at: tl.tensor,
    bias_at: tl.tensor,
    out_at: tl.tensor,
    rows: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    x_row: tl.tensor,
    weight_row: tl.tensor,
    out_row: tl.tensor,
    BIAS: tl.constexpr,
    AFTER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """A tile of outputs. fp32 operands are multiplied in fp32, not in tf32."""
    row = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        column = first + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_at + row[:, None] * x_row + column[None, :],
            (row < rows)[:, None] & (column < k)[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_at + outputs[None, :] * weight_row + column[:, None],
            (outputs < n)[None, :] & (column < k)[:, None],
            other=0.0,
        )
        total = tl.dot(x, weight, total, input_precision="ieee")
    if BIAS:
        bias = tl.load(bias_at + outputs, outputs < n, other=0.0).to(tl.float32)
        if AFTER:
            total = total.to(out_at.dtype.element_ty).to(tl.float32)
        total += bias[None, :]
    mask = (row < rows)[:, None] & (outputs < n)[None, :]
    out = total.to(out_at.dtype.element_ty)
    tl.store(out_at + row[:, None] * out_row + outputs[None, :], out, mask)


@implementation(
    "linear",
    name="triton",
    profile=("once", "bias_after", "float16", "float32"),
    engine="ptx",
    requires=("triton",),
)
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """One launch; the bias is added to the fp32 sum, or to its rounding (bias_after)."""
    return launch(gemm, x, weight, bias, profile)


def launch(
    kernel: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    profile: str,
    **more: Any,
) -> torch.Tensor:
    """The kernel, or another with its arguments, over all tiles; columns lie side by side."""
    (rows, k), n = x.shape, weight.shape[0]
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    tall, wide = (16 if rows <= 16 else 64), 64
    # rows that are not 16 bytes apart are read value by value, and a deep tile of them does not fit in registers
    apart = x.stride(0) % 8 or weight.stride(0) % 8
    deep = 16 if profile == "float32" else 32 if apart else 64
    kernel[(-(-n // wide), -(-rows // tall))](
        x, weight, x if bias is None else bias, out,
        rows, n, k, x.stride(0), weight.stride(0), out.stride(0),
        BIAS=bias is not None, AFTER=profile == "bias_after",
        BLOCK_M=tall, BLOCK_N=wide, BLOCK_K=deep, **more,
    )  # fmt: skip
    return out
