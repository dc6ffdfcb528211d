"""The largest logit of each row: parts of a row by many programs, then the best of the parts.

A logit and its place are one 64-bit number: the larger logit is the larger number, and of equal ones the one that stands
first. So the maximum of any tree is the same, and tells also whether the row can be trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import tile
from contract.kernels.triton.row_tiles import by_rows, power_of_two
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

#: Logits of one program, and its warps: 16 a thread, 63 programs for a vocabulary of 257,216.
PART, WARPS = 4096, 8


@jit
def ordered(value: tl.tensor) -> tl.tensor:
    """An fp32 value as an integer of the same order: -0 is +0, and a NaN is the largest of all.

    By its bits, as a comparison of subnormals may flush them.
    """
    bits = value.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, key)


@jit
def best_of_parts(
    logits: tl.tensor,
    best: tl.tensor,
    n: tl.tensor,
    row_stride: tl.tensor,
    parts: tl.tensor,
    PART: tl.constexpr,
) -> None:
    """The best logit of PART columns: its order in the upper half, n - 1 minus its place in the lower one."""
    row, column = tile(n, PART)
    inside = column < n
    value = tl.load(logits + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    both = (ordered(value).to(tl.int64) << 32) + (n - 1 - column).to(tl.int64)
    # below every logit, -inf and its place included
    both = tl.where(inside, both, -0x7FFFFFFFFFFFFFFF)
    tl.store(best + row * parts + tl.program_id(0) % parts, tl.max(both, 0))


@jit
def best_of_row(best: tl.tensor, n: tl.tensor, parts: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """(place of the row's largest logit, whether the row holds a NaN or +inf, or nothing but -inf)."""
    part = tl.arange(0, PARTS)
    row = tl.program_id(0).to(tl.int64)
    both = tl.load(best + row * parts + part, mask=part < parts, other=-0x7FFFFFFFFFFFFFFF)
    top = tl.max(both, 0)
    key = (top >> 32).to(tl.int32)
    place = n - 1 - (top & 0x7FFFFFFF).to(tl.int32)
    return place, (key >= 0x7F800000) | (key <= -0x7F800000)


@jit
def argmax_kernel(
    best: tl.tensor,
    ids: tl.tensor,
    flags: tl.tensor,
    n: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    """Place and flag of one row."""
    place, untrusted = best_of_row(best, n, parts, PARTS)
    tl.store(ids + tl.program_id(0), place)
    tl.store(flags + tl.program_id(0), untrusted.to(tl.uint8))


def parts_of(logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The best of every part of every row, (rows, parts) int64, and how many there are."""
    logits = by_rows(logits)
    rows, n = logits.shape
    parts = -(-n // PART)
    best = torch.empty((rows, parts), dtype=torch.int64, device=logits.device)
    best_of_parts[(rows * parts,)](
        logits, best, n, logits.stride(0), parts, PART=PART, num_warps=WARPS
    )
    return best, parts


@implementation(
    "argmax_rows",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("bf16_logits", "float32_logits"),
    invariant=("batch", "position", "launch", "layout"),
)
def argmax_rows_triton(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two launches; the first of equal logits is picked, and a NaN before all of them."""
    rows, n = logits.shape
    best, parts = parts_of(logits)
    ids = torch.empty(rows, dtype=torch.int32, device=logits.device)
    flags = torch.empty(rows, dtype=torch.uint8, device=logits.device)
    argmax_kernel[(rows,)](best, ids, flags, n, parts, PARTS=power_of_two(parts), num_warps=1)
    return ids, flags
