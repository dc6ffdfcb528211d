"""The next token of each row, with a fallback: argmax's first launch, then the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.argmax_rows import best_of_row, parts_of
from contract.kernels.triton.row_tiles import power_of_two
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def pick_kernel(
    best: tl.tensor,
    fallback: tl.tensor,
    token: tl.tensor,
    flags: tl.tensor,
    n: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    """Token and flag of one row."""
    place, untrusted = best_of_row(best, n, parts, PARTS)
    tl.store(token + tl.program_id(0), tl.where(untrusted, tl.load(fallback), place))
    tl.store(flags + tl.program_id(0), untrusted.to(tl.uint8))


@implementation(
    "pick_ids",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("bf16_logits", "float32_logits"),
    invariant=("batch", "position", "launch", "layout"),
)
def pick_ids_triton(
    logits: torch.Tensor, fallback: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two launches; the fallback where the row cannot be trusted."""
    rows, n = logits.shape
    best, parts = parts_of(logits)
    token = torch.empty(rows, dtype=torch.int32, device=logits.device)
    flags = torch.empty(rows, dtype=torch.uint8, device=logits.device)
    pick_kernel[(rows,)](
        best, fallback, token, flags, n, parts, PARTS=power_of_two(parts), num_warps=1
    )
    return token, flags
