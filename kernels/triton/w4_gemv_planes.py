"""Vectors of int16 codes times a four-bit weight: two Triton kernels, exact in each block of 128 inputs.

The first cuts the codes into an int8 plane of their high bytes and one of their low bytes, in the order in which a word
of the weight gives its codes: w & 0x0F0F0F0F holds codes 0, 2, 4 and 6 as bytes, w >> 4 the others. The second then
takes four products and sums at a time (dp4a), in int32.
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

#: Inputs of a block, and the words that hold their codes.
BLOCK, WORDS = 128, 16
#: Steps over the blocks: a row of any length is cut into at most so many.
STEPS = 8
#: Block terms that a program takes in one step, over all its outputs.
TILE = 64
#: Additions that a block's term makes: one a step, then at most TILE in any tree, for up to 512 blocks (65,536 inputs).
DEPTH = STEPS + TILE


@jit
def planes(
    a_at: tl.tensor,
    planes_at: tl.tensor,
    totals_at: tl.tensor,
    a_row: tl.tensor,
    planes_row: tl.tensor,
    totals_row: tl.tensor,
    words: tl.tensor,
    SIGNED: tl.constexpr,
) -> None:
    """One block of one vector: (4, words) words of bytes, high and low of codes 0, 2, 4, 6, then of 1, 3, 5, 7."""
    row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    word = block * 16 + tl.arange(0, 16)
    column = word[:, None] * 8 + 2 * tl.arange(0, 4)[None, :]
    total = 0
    for odd in tl.static_range(2):
        a = tl.load(a_at + row * a_row + column + odd).to(tl.int32)
        if SIGNED:
            # beyond it the high plane of a signed low one would be 128
            a = tl.minimum(a, 32639)
            low = ((a + 128) & 255) - 128
        else:
            low = a & 255
        high = (a - low) >> 8
        shift = (8 * tl.arange(0, 4))[None, :]
        at = planes_at + row * planes_row + 2 * odd * words + word
        tl.store(at, tl.sum((high & 255) << shift, 1))
        tl.store(at + words, tl.sum((low & 255) << shift, 1))
        total += tl.sum(tl.sum(a, 1), 0)
    tl.store(totals_at + row * totals_row + block, total)


@jit
def dot4(q: tl.tensor, a: tl.tensor, total: tl.tensor, SIGNED: tl.constexpr) -> tl.tensor:
    """total + the products of four bytes: codes 0 .. 15 and a plane's."""
    if SIGNED:
        return tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [q, a, total], tl.int32, True, 1
        )
    return tl.inline_asm_elementwise(
        "dp4a.u32.u32 $0, $1, $2, $3;", "=r,r,r,r", [q, a, total], tl.int32, True, 1
    )


@jit
def gemv(
    words_at: tl.tensor,
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    planes_at: tl.tensor,
    totals_at: tl.tensor,
    out_at: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    words_row: tl.tensor,
    scales_row: tl.tensor,
    zeros_row: tl.tensor,
    planes_row: tl.tensor,
    totals_row: tl.tensor,
    out_row: tl.tensor,
    SIGNED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
) -> None:
    """Outputs of one vector; a step takes BLOCK_B blocks."""
    row = tl.program_id(1).to(tl.int64)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    words = blocks * 16
    total = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
    for first in range(0, blocks, BLOCK_B):
        word = first * 16 + tl.arange(0, BLOCK_B * 16)
        mask = (outputs < n)[:, None] & (word < words)[None, :]
        packed = tl.load(words_at + outputs[:, None] * words_row + word[None, :], mask, other=0)
        high = tl.zeros((BLOCK_N, BLOCK_B * 16), tl.int32)
        low = tl.zeros((BLOCK_N, BLOCK_B * 16), tl.int32)
        for odd in tl.static_range(2):
            q = (packed >> (4 * odd)) & 0x0F0F0F0F
            at = planes_at + row * planes_row + 2 * odd * words + word
            a = tl.load(at, word < words, other=0)
            high = dot4(q, tl.broadcast_to(a[None, :], q.shape), high, True)
            a = tl.load(at + words, word < words, other=0)
            low = dot4(q, tl.broadcast_to(a[None, :], q.shape), low, SIGNED)
        sums = tl.sum(tl.reshape(256 * high + low, (BLOCK_N, BLOCK_B, 16)), 2)
        block = first + tl.arange(0, BLOCK_B)
        mask = (outputs < n)[:, None] & (block < blocks)[None, :]
        zero = tl.load(zeros_at + outputs[:, None] * zeros_row + block[None, :], mask, other=0)
        all_of = tl.load(totals_at + row * totals_row + block, block < blocks, other=0)
        scale = tl.load(scales_at + outputs[:, None] * scales_row + block[None, :], mask, other=0.0)
        exact = sums - zero.to(tl.int32) * all_of[None, :]
        total = tl.fma(exact.to(tl.float32), scale.to(tl.float32), total)
    out = tl.sum(total, 1).to(out_at.dtype.element_ty)
    tl.store(out_at + row * out_row + outputs, out, outputs < n)


@implementation(
    "w4_gemv_planes",
    name="triton",
    profile=("once", "half"),
    engine="ptx",
    requires=("triton",),
    order={"blocks": DEPTH},
)
def w4_gemv_planes(
    a: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    low: str,
    profile: str,
) -> torch.Tensor:
    """Two launches: the planes of the vectors, then all outputs.

    Raises:
        ValueError: scales that do not fit the codes, or are not finite.
    """
    checked_scales(scales, a.shape[1], BLOCK)
    out = torch.bfloat16 if profile == "once" else torch.float16
    return launch(gemv, a, words, scales, zeros, low, out)


def launch(
    kernel: Any,
    a: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    low: str,
    dtype: torch.dtype,
    **more: Any,
) -> torch.Tensor:
    """The kernel, or another with its arguments, over all outputs and vectors."""
    (rows, k), (n, blocks) = a.shape, scales.shape
    cut = torch.empty((rows, 4, k // 8), dtype=torch.int32, device=a.device)
    totals = torch.empty((rows, blocks), dtype=torch.int32, device=a.device)
    out = torch.empty((rows, n), dtype=dtype, device=a.device)
    signed = low == "signed"
    planes[(blocks, rows)](
        a, cut, totals, a.stride(0), cut.stride(0), totals.stride(0), k // 8, SIGNED=signed, num_warps=1,
    )  # fmt: skip
    step = 1 << (max(4, -(-blocks // STEPS)) - 1).bit_length()
    outputs = max(1, TILE // step)
    kernel[(-(-n // outputs), rows)](
        words, scales, zeros, cut, totals, out,
        n, blocks, words.stride(0), scales.stride(0), zeros.stride(0), cut.stride(0), totals.stride(0), out.stride(0),
        SIGNED=signed, BLOCK_N=outputs, BLOCK_B=step, **more,
    )  # fmt: skip
    return out
