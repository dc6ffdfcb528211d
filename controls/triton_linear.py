"""Planted dense layers in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON, truncated
from contract.engines.deferred_jit import jit
from contract.kernels.triton.linear import gemm, launch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty(
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
    FAULT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """A tile of outputs with a bias."""
    row = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    end = k // BLOCK_K * BLOCK_K if FAULT == "tail" else k
    for first in range(0, end, BLOCK_K):
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
        total = tl.dot(x, weight, total, input_precision="tf32" if FAULT == "tf32" else "ieee")
        if FAULT == "accumulator":
            total = total.to(tl.bfloat16).to(tl.float32)
    bias = tl.load(bias_at + outputs, outputs < n, other=0.0).to(tl.float32)
    if FAULT == "after":
        total = total.to(tl.bfloat16).to(tl.float32)
    total += bias[None, :]
    mask = (row < rows)[:, None] & (outputs < n)[None, :]
    out = truncated(total) if FAULT == "store" else total.to(out_at.dtype.element_ty)
    tl.store(out_at + row[:, None] * out_row + outputs[None, :], out, mask)


@red("linear", profile="once", gate="exact", bias_term="yes", **TRITON)
def triton_store_truncates(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The last rounding drops bits."""
    return launch(faulty, x, weight, bias, "once", FAULT="store")


@red("linear", profile="once", gate="exact", bias_term="yes", **TRITON)
def triton_accumulator_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The tile of sums is rounded to bf16 after each step."""
    return launch(faulty, x, weight, bias, "once", FAULT="accumulator")


@red("linear", profile="once", gate="exact", bias_term="yes", **TRITON)
def triton_bias_after_a_rounding(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The product is rounded before the bias is added."""
    return launch(faulty, x, weight, bias, "once", FAULT="after")


@red("linear", profile="once", gate="exact", bias_term="yes", **TRITON)
def triton_last_step_missing(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Inputs beyond the last whole tile are left out."""
    return launch(faulty, x, weight, bias, "once", FAULT="tail")


@red("linear", profile="float32", gate="exact", bias_term="yes", **TRITON)
def triton_products_in_tf32(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Triton's default for fp32 operands: 10 bits of each are multiplied."""
    return launch(faulty, x, weight, bias, "float32", FAULT="tf32")


@green("linear", profile="once", bias_term="yes", **TRITON)
def triton_two_warps(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Another division of the tiles."""
    return launch(gemm, x, weight, bias, "once", num_warps=2)
