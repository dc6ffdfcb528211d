"""Planted attention over caches in Triton: one fault a kernel or launch, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.attention import BLOCK
from contract.kernels.triton.decode_attention import (
    launch,
    merge_kernel,
    scores_kernel,
    values_kernel,
)
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    torch, tl = lazy("torch"), lazy("triton.language")
    libdevice = lazy("triton.language.extra.libdevice")

RIGHT = (scores_kernel, values_kernel, merge_kernel)


@jit
def faulty_merge(
    tops_at: tl.tensor,
    parts_at: tl.tensor,
    sums_at: tl.tensor,
    length_at: tl.tensor,
    out_at: tl.tensor,
    lse_at: tl.tensor,
    heads: tl.tensor,
    d: tl.tensor,
    chunks: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    FAULT: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Chunks in order."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = row * heads + head
    column = tl.arange(0, BLOCK_V)
    last = tl.load(tops_at + line * chunks)
    for chunk in range(1, chunks):
        last = tl.maximum(last, tl.load(tops_at + line * chunks + chunk))
    base = tl.where(last == float("-inf"), 0.0, last)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    out = tl.zeros((BLOCK_V,), tl.float32)
    for chunk in range(chunks):
        top = tl.maximum(top, tl.load(tops_at + line * chunks + chunk))
        # a chunk whose maximum was -inf was weighed against 0, and holds zeros
        factor = libdevice.exp(tl.where(top == float("-inf"), base, top) - base)
        part_sum = tl.load(sums_at + line * chunks + chunk)
        total = total + part_sum * (1.0 if FAULT == "sums" else factor)
        part = tl.load(parts_at + (line * chunks + chunk) * d + column, column < d, other=0.0)
        out = out + part * (1.0 if FAULT == "parts" else factor)
    some = tl.load(length_at + row) > 0
    out = tl.where(some, tl.math.div_rn(out, tl.broadcast_to(total, out.shape)), 0.0)
    at = out_at + row * out_row + head * out_head + column
    tl.store(at, out.to(out_at.dtype.element_ty), column < d)
    tl.store(lse_at + line, last + libdevice.log(total))


class Faulty:
    """The faulty merge with its fault chosen."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __getitem__(self, grid: Any) -> Any:
        return lambda *given, **more: faulty_merge[grid](*given, FAULT=self.fault, **more)


@red("decode_attention", profile="running", gate="exact", **TRITON)
def triton_parts_not_rescaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunks are added as they were weighed."""
    return launch((*RIGHT[:2], Faulty("parts")), q, k, v, length, scale, BLOCK)


@red("decode_attention", profile="running", gate="exact", **TRITON)
def triton_sums_not_rescaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of chunks are added as they were weighed."""
    return launch((*RIGHT[:2], Faulty("sums")), q, k, v, length, scale, BLOCK)


@red("decode_attention", profile="running", gate="exact", **TRITON)
def triton_chunks_of_64_slots(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights are rounded against the maximum of fewer slots."""
    return launch(RIGHT, q, k, v, length, scale, 64)


@red("decode_attention", profile="running", gate="exact", **TRITON)
def triton_last_slot_forgotten(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last used slot is not looked at."""
    return launch(RIGHT, q, k, v, (length - 1).clamp(min=0), scale, BLOCK)


@green("decode_attention", profile="running", **TRITON)
def triton_four_warps(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Another division of the tiles."""
    return launch(RIGHT, q, k, v, length, scale, BLOCK, num_warps=4)
