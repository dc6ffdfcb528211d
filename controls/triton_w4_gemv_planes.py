"""Planted products of int16 codes with four-bit weights in Triton: one fault a kernel, and another launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.w4_gemv_planes import dot4, gemv, launch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty(
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
    FAULT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
) -> None:
    """Outputs of one vector."""
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
            shift = 4 * (1 - odd) if FAULT == "nibbles" else 4 * odd
            q = (packed >> shift) & 0x0F0F0F0F
            at = planes_at + row * planes_row + 2 * odd * words + word
            a = tl.load(at, word < words, other=0)
            high = dot4(q, tl.broadcast_to(a[None, :], q.shape), high, True)
            a = tl.load(at + words, word < words, other=0)
            # the sign of the low plane is the other one
            low = dot4(q, tl.broadcast_to(a[None, :], q.shape), low, (FAULT == "sign") != SIGNED)
        both = (high + low) if FAULT == "shift" else 256 * high + low
        sums = tl.sum(tl.reshape(both, (BLOCK_N, BLOCK_B, 16)), 2)
        block = first + tl.arange(0, BLOCK_B)
        mask = (outputs < n)[:, None] & (block < blocks)[None, :]
        zero = tl.load(zeros_at + outputs[:, None] * zeros_row + block[None, :], mask, other=0)
        all_of = tl.load(totals_at + row * totals_row + block, block < blocks, other=0)
        scale = tl.load(scales_at + outputs[:, None] * scales_row + block[None, :], mask, other=0.0)
        exact = sums if FAULT == "zeros" else sums - zero.to(tl.int32) * all_of[None, :]
        terms = exact.to(tl.float32)
        if FAULT == "narrow":
            terms = terms.to(tl.bfloat16).to(tl.float32)
        total = tl.fma(terms, scale.to(tl.float32), total)
    out = tl.sum(total, 1).to(out_at.dtype.element_ty)
    tl.store(out_at + row * out_row + outputs, out, outputs < n)


def planted(
    a: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    low: str,
    fault: str,
) -> torch.Tensor:
    """The product with that fault."""
    return launch(faulty, a, words, scales, zeros, low, torch.bfloat16, FAULT=fault)


@red("w4_gemv_planes", profile="once", gate="exact", **TRITON)
def triton_low_plane_of_the_other_sign(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """dp4a reads bytes as u8 where they are s8, or the other way."""
    return planted(a, words, scales, zeros, low, "sign")


@red("w4_gemv_planes", profile="once", gate="exact", **TRITON)
def triton_zero_point_dropped(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """Sums of q a alone."""
    return planted(a, words, scales, zeros, low, "zeros")


@red("w4_gemv_planes", profile="once", gate="exact", **TRITON)
def triton_nibbles_swapped(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """The high nibble of a byte comes first."""
    return planted(a, words, scales, zeros, low, "nibbles")


@red("w4_gemv_planes", profile="once", gate="exact", **TRITON)
def triton_block_sums_in_bf16(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """Exact sums are rounded to bf16 before they meet the scale."""
    return planted(a, words, scales, zeros, low, "narrow")


@green("w4_gemv_planes", profile="once", **TRITON)
def triton_two_warps(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """Another lane tree."""
    return launch(gemv, a, words, scales, zeros, low, torch.bfloat16, num_warps=2)
