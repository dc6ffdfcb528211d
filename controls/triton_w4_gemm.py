"""Planted products of rows with dequantised four-bit weights in Triton: one fault a kernel, and another launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON, truncated
from contract.engines.deferred_jit import jit
from contract.kernels.triton.w4_gemm import gemm, launch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty(
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
    FAULT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    """Symmetric codes in bf16."""
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
        shifts = 28 - 4 * tl.arange(0, 8) if FAULT == "nibbles" else 4 * tl.arange(0, 8)
        codes = ((packed[:, :, None] >> shifts[None, None, :]) & 15) - 8
        wide = codes.to(tl.float32) * scale.to(tl.float32)[:, :, None]
        weight = truncated(wide) if FAULT == "weight" else wide.to(tl.bfloat16)
        total = tl.dot(x, tl.trans(tl.reshape(weight, (BLOCK_N, BLOCK_W * 8))), total)
        if FAULT == "accumulator":
            total = total.to(tl.bfloat16).to(tl.float32)
    mask = (row < rows)[:, None] & (outputs < n)[None, :]
    tl.store(out_at + row[:, None] * out_row + outputs[None, :], total.to(tl.bfloat16), mask)


def planted(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, fault: str) -> torch.Tensor:
    """The product with that fault."""
    return launch(faulty, x, words, scales, None, "32", FAULT=fault)


@red("w4_gemm", profile="bf16", gate="exact", block="32", **TRITON)
def triton_weight_truncated(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The weight's rounding drops bits."""
    return planted(x, words, scales, "weight")


@red("w4_gemm", profile="bf16", gate="exact", block="32", **TRITON)
def triton_accumulator_in_bf16(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The tile of sums is rounded to bf16 after each step."""
    return planted(x, words, scales, "accumulator")


@red("w4_gemm", profile="bf16", gate="exact", block="32", **TRITON)
def triton_nibbles_from_the_top(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The first code is taken from the high bits of a word."""
    return planted(x, words, scales, "nibbles")


@green("w4_gemm", profile="bf16", block="32", **TRITON)
def triton_two_warps(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Another division of the tiles."""
    return launch(gemm, x, words, scales, None, "32", num_warps=2)
