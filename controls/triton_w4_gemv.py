"""Planted products of vectors with four-bit weights in Triton: one fault a kernel, and other launches of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON, truncated
from contract.engines.deferred_jit import jit
from contract.kernels.triton.w4_gemv import every_eighth, gemv, launch, weight_of
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
    FAULT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    """Symmetric codes."""
    row = tl.program_id(1).to(tl.int64)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    for first in range(0, words, BLOCK_W):
        word = first + tl.arange(0, BLOCK_W)
        mask = (outputs < n)[:, None] & (word < words)[None, :]
        packed = tl.load(words_at + outputs[:, None] * words_row + word[None, :], mask, other=0)
        place = tl.maximum(word - 1, 0) if FAULT == "edge" else word
        block = (place // PER_BLOCK)[None, :]
        scale = tl.load(scales_at + outputs[:, None] * scales_row + block, mask, other=0.0)
        column = first * 8 + tl.arange(0, BLOCK_W * 8)
        x = tl.load(x_at + row * x_row + column, column < words * 8, other=0.0).to(tl.float32)
        part = every_eighth(x, BLOCK_W)
        for i in tl.static_range(8):
            shift = 28 - 4 * i if FAULT == "nibbles" else 4 * i
            code = (packed >> shift) & 15
            weight = weight_of(code, scale.to(tl.float32), scale, "symmetric")
            total = tl.fma(weight, tl.broadcast_to(part[i][None, :], weight.shape), total)
        if FAULT == "accumulator":
            total = total.to(tl.bfloat16).to(tl.float32)
    if FAULT == "lanes":
        total, _ = tl.split(tl.reshape(total, (BLOCK_N, BLOCK_W // 2, 2)))
    out = tl.sum(total, 1)
    stored = truncated(out) if FAULT == "store" else out.to(tl.bfloat16)
    tl.store(out_at + row * out_row + outputs, stored, outputs < n)


def planted(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, fault: str) -> torch.Tensor:
    """The product with that fault."""
    return launch(faulty, x, words, scales, None, None, "32", "kept", FAULT=fault)


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no", **TRITON)
def triton_store_truncates(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The last rounding drops bits."""
    return planted(x, words, scales, "store")


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no", **TRITON)
def triton_nibbles_from_the_top(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The first code is taken from the high bits of a word."""
    return planted(x, words, scales, "nibbles")


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no", **TRITON)
def triton_first_shuffle_missing(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Every second partial sum is left out."""
    return planted(x, words, scales, "lanes")


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no", **TRITON)
def triton_accumulator_in_bf16(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Partial sums are rounded to bf16 after each step."""
    return planted(x, words, scales, "accumulator")


@red("w4_gemv", profile="kept", gate="exact", block="32", offsets="no", **TRITON)
def triton_block_edge_shifted(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """A word takes the scale of the word before."""
    return planted(x, words, scales, "edge")


@green("w4_gemv", profile="kept", block="32", offsets="no", **TRITON)
def triton_one_warp(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Another lane tree."""
    return launch(gemv, x, words, scales, None, None, "32", "kept", num_warps=1)
