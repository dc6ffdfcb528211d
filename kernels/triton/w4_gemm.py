"""Rows times a four-bit weight that is dequantised first: a Triton kernel on tensor cores.

A tile of the weight is unpacked in registers, rounded to the format of x and multiplied with fp32 accumulators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.packing import checked_scales
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def gemm(
    x_at: tl.tensor,
    words_at: tl.tensor,
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    out_at: tl.tensor,
    rows: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    x_row: tl.tensor,
    words_row: tl.tensor,
    scales_row: tl.tensor,
    zeros_row: tl.tensor,
    out_row: tl.tensor,
    PER_BLOCK: tl.constexpr,
    ZEROS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    """A tile of outputs; a step over k takes BLOCK_W words, eight inputs each."""
    row = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, words, BLOCK_W):
        column = first * 8 + tl.arange(0, BLOCK_W * 8)
        at = row[:, None] * x_row + column[None, :]
        x = tl.load(x_at + at, (row < rows)[:, None] & (column < words * 8)[None, :], other=0.0)
        word = first + tl.arange(0, BLOCK_W)
        mask = (outputs < n)[:, None] & (word < words)[None, :]
        packed = tl.load(words_at + outputs[:, None] * words_row + word[None, :], mask, other=0)
        block = (word // PER_BLOCK)[None, :]
        scale = tl.load(scales_at + outputs[:, None] * scales_row + block, mask, other=0.0)
        codes = (packed[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]) & 15
        if ZEROS:
            zero = tl.load(zeros_at + outputs[:, None] * zeros_row + block, mask, other=0)
            codes -= zero.to(tl.int32)[:, :, None]
        else:
            codes -= 8
        # up to 16 bits: exact in fp32, rounded once here
        weight = (codes.to(tl.float32) * scale.to(tl.float32)[:, :, None]).to(x.dtype)
        total = tl.dot(x, tl.trans(tl.reshape(weight, (BLOCK_N, BLOCK_W * 8))), total)
    mask = (row < rows)[:, None] & (outputs < n)[None, :]
    out = total.to(out_at.dtype.element_ty)
    tl.store(out_at + row[:, None] * out_row + outputs[None, :], out, mask)


@implementation(
    "w4_gemm", name="triton", profile=("bf16", "fp16"), engine="ptx", requires=("triton",)
)
def w4_gemm(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    block: str,
) -> torch.Tensor:
    """One launch.

    Raises:
        ValueError: scales that do not fit the words, or are not finite.
    """
    checked_scales(scales, x.shape[1], int(block))
    return launch(gemm, x, words, scales, zeros, block)


def launch(
    kernel: Any,
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    block: str,
    **more: Any,
) -> torch.Tensor:
    """The kernel, or another with its arguments, over all tiles; columns of every operand lie side by side."""
    rows, n = x.shape[0], scales.shape[0]
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    tall, wide = (16 if rows <= 16 else 64), 64
    other = scales if zeros is None else zeros
    kernel[(-(-n // wide), -(-rows // tall))](
        x, words, scales, other, out,
        rows, n, words.shape[1],
        x.stride(0), words.stride(0), scales.stride(0), other.stride(0), out.stride(0),
        PER_BLOCK=int(block) // 8, ZEROS=zeros is not None,
        BLOCK_M=tall, BLOCK_N=wide, BLOCK_W=8, **more,
    )  # fmt: skip
    return out
