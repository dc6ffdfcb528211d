"""Vectors times a four-bit weight: a Triton kernel that reads each word of eight codes once.

A program makes BLOCK_N outputs of one vector. A thread reads four words, 16 bytes, at a time and unpacks them in
registers; x is read once a program and step. fp32 accumulators, one for each word of a tile, stay apart until the end
of k.
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

#: Steps over k: a row of any length is cut into at most so many, of at least LEAST words.
STEPS, LEAST = 8, 64
#: Words that a program takes in one step, over all its outputs.
TILE = 1024
#: Additions that a term makes: eight a step, then 8 in its thread, as 128 threads share a tile, 5 over the lanes and 2
#: over the warps, for k up to 65,536.
DEPTH = 8 * STEPS + 8 + 5 + 2


@jit
def weight_of(code: tl.tensor, scale: tl.tensor, other: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """Codes 0 .. 15 and what belongs to each -> weights in fp32.

    `other` is the zero point (zeros), or the number that is added (offset, added); elsewhere it is not read.
    """
    if MODE == "zeros":
        weight = (code - other).to(tl.float32) * scale
    else:
        weight = (code - 8).to(tl.float32) * scale
    if MODE == "offset" or MODE == "added":
        weight += other
    if MODE == "dequantised":
        weight = weight.to(tl.bfloat16).to(tl.float32)
    return weight


@jit
def every_eighth(x: tl.tensor, W: tl.constexpr) -> tl.tuple:
    """(8 W,) values -> eight tensors (W,), the first of each word, the second, ..."""
    even, odd = tl.split(tl.reshape(x, (W, 4, 2)))
    x04, x26 = tl.split(tl.reshape(even, (W, 2, 2)))
    x15, x37 = tl.split(tl.reshape(odd, (W, 2, 2)))
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@jit
def gemv(
    x_at: tl.tensor,
    words_at: tl.tensor,
    scales_at: tl.tensor,
    other_at: tl.tensor,
    out_at: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    x_row: tl.tensor,
    words_row: tl.tensor,
    scales_row: tl.tensor,
    other_row: tl.tensor,
    out_row: tl.tensor,
    PER_BLOCK: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    """Outputs of one vector; a scale serves PER_BLOCK words."""
    row = tl.program_id(1).to(tl.int64)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = outputs < n
    total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    for first in range(0, words, BLOCK_W):
        word = first + tl.arange(0, BLOCK_W)
        mask = inside[:, None] & (word < words)[None, :]
        packed = tl.load(words_at + outputs[:, None] * words_row + word[None, :], mask, other=0)
        block = (word // PER_BLOCK)[None, :]
        scale = tl.load(scales_at + outputs[:, None] * scales_row + block, mask, other=0.0)
        scale = scale.to(tl.float32)
        other = scale
        if MODE != "symmetric" and MODE != "dequantised":
            other = tl.load(other_at + outputs[:, None] * other_row + block, mask, other=0)
        if MODE == "zeros":
            other = other.to(tl.int32)
        if MODE == "offset":
            other = ((8 - other.to(tl.int32)).to(tl.float32) * scale).to(tl.bfloat16)
        if MODE == "offset" or MODE == "added":
            other = other.to(tl.float32)
        column = first * 8 + tl.arange(0, BLOCK_W * 8)
        x = tl.load(x_at + row * x_row + column, column < words * 8, other=0.0).to(tl.float32)
        part = every_eighth(x, BLOCK_W)
        for i in tl.static_range(8):
            weight = weight_of((packed >> (4 * i)) & 15, scale, other, MODE)
            total = tl.fma(weight, tl.broadcast_to(part[i][None, :], weight.shape), total)
    out = tl.sum(total, 1).to(out_at.dtype.element_ty)
    tl.store(out_at + row * out_row + outputs, out, inside)


@implementation(
    "w4_gemv",
    name="triton",
    profile=("kept", "dequantised", "offset"),
    engine="ptx",
    requires=("triton",),
    order={"dot": DEPTH},
)
def w4_gemv(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    block: str,
    profile: str,
) -> torch.Tensor:
    """One launch; the weight is read as it is stored.

    Raises:
        ValueError: scales or offsets that do not fit the words, or are not finite.
    """
    checked_scales(scales, x.shape[1], int(block))
    if offset is not None:
        checked_scales(offset, x.shape[1], int(block), "offset")
    return launch(gemv, x, words, scales, zeros, offset, block, profile)


def launch(
    kernel: Any,
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    offset: torch.Tensor | None,
    block: str,
    profile: str,
    **more: Any,
) -> torch.Tensor:
    """The kernel, or another with its arguments, over all outputs and vectors; columns of every operand lie side by side."""
    rows, n = x.shape[0], scales.shape[0]
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    other, mode = (scales, "dequantised" if profile == "dequantised" else "symmetric")
    if zeros is not None:
        other, mode = zeros, "offset" if profile == "offset" else "zeros"
    if offset is not None:
        other, mode = offset, "added"
    length = words.shape[1]
    step = 1 << (max(LEAST, -(-length // STEPS)) - 1).bit_length()
    outputs = max(1, TILE // step)
    kernel[(-(-n // outputs), rows)](
        x, words, scales, other, out,
        n, length, x.stride(0), words.stride(0), scales.stride(0), other.stride(0), out.stride(0),
        PER_BLOCK=int(block) // 8, MODE=mode, BLOCK_N=outputs, BLOCK_W=step, **more,
    )  # fmt: skip
    return out
