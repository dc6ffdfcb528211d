"""Planted tile rotations with int8 codes in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.hadamard_quant import launch, rotated, rows_kernel, stage
from contract.kernels.triton.static_int8 import static_codes
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    folded: tl.tensor,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    FAULT: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Codes of WIDTH lanes of one row."""
    row = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    group = tl.arange(0, GROUPS)
    if FAULT == "stride":
        column = group[:, None] + GROUPS * lane[None, :]
    else:
        column = 32 * group[:, None] + lane[None, :]
    y = tl.load(x_at + row * x_row + column).to(tl.float32)
    if FAULT == "order":
        for k in tl.static_range(STAGES):
            y = stage(y, GROUPS, GROUPS >> (k + 1), WIDTH)
    elif FAULT == "stage":
        y = rotated(y, GROUPS, STAGES - 1, WIDTH)
    else:
        y = rotated(y, GROUPS, STAGES, WIDTH)
    codes = static_codes(y, tl.math.div_rn(1.0, folded))
    tl.store(codes_at + row * codes_row + column, codes)


@red("hadamard_quant", profile="bf16_rows", gate="exact", **TRITON)
def triton_lanes_for_groups(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """A group's values are taken as if they lay side by side."""
    return launch(faulty, x, scale, FAULT="stride")


@red("hadamard_quant", profile="bf16_rows", gate="exact", **TRITON)
def triton_last_stage_missing(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """One stage of additions less."""
    return launch(faulty, x, scale, FAULT="stage")


@red("hadamard_quant", profile="float32", gate="exact", **TRITON)
def triton_far_groups_first(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The stages in the other order."""
    return launch(faulty, x, scale, FAULT="order")


@green("hadamard_quant", profile="bf16_rows", **TRITON)
def triton_eight_warps(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Another number of warps."""
    return launch(rows_kernel, x, scale, num_warps=8)
