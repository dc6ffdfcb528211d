"""Planted kernels in Triton that pick or move: embedding rows, argmax, token choice, pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.argmax_rows import (
    argmax_kernel,
    argmax_rows_triton,
    best_of_parts,
    ordered,
    parts_of,
)
from contract.kernels.triton.element_tiles import columns_grid, tile
from contract.kernels.triton.row_tiles import power_of_two
from contract.kernels.triton.vit_pool import pool_kernel, vit_pool_triton
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

# -- embedding rows


@jit
def faulty_embed(
    ids: tl.tensor,
    table: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    table_stride: tl.tensor,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """BLOCK columns of a scaled row."""
    row, column = tile(d, BLOCK)
    inside = column < d
    at = tl.load(ids + row) * table_stride
    if FAULT == "16 bits":
        at = at & 0xFFFF
    value = tl.load(table + at + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(scale)
    if FAULT != "scale":
        factor = factor.to(tl.bfloat16).to(tl.float32)
    tl.store(out + row * d + column, (value * factor).to(tl.bfloat16), mask=inside)


def embedded(ids: Any, table: Any, scale: Any, fault: str, block: int = 1024) -> Any:
    """All rows, with that fault."""
    out = torch.empty((ids.shape[0], table.shape[1]), dtype=table.dtype, device=table.device)
    faulty_embed[columns_grid(out, block)](
        ids, table, scale, out, table.shape[1], table.stride(0),
        FAULT=fault, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


@red("embed", profile="once", gate="exact", name="triton.scale_in_fp32", scaled="yes", **TRITON)
def scale_in_fp32(ids: Any, table: Any, scale: Any) -> Any:
    """The factor is not rounded to the table's format."""
    return embedded(ids, table, scale, "scale")


@red("embed", profile="once", gate="shapes", name="triton.start_in_16_bits", scaled="yes", **TRITON)
def start_in_16_bits(ids: Any, table: Any, scale: Any) -> Any:
    """The upper bits of a row's start are lost."""
    return embedded(ids, table, scale, "16 bits")


@green("embed", profile="once", name="triton.small_blocks", scaled="yes", **TRITON)
def small_blocks(ids: Any, table: Any, scale: Any) -> Any:
    """256 columns a program."""
    return embedded(ids, table, scale, "", 256)


# -- the largest logit


@jit
def faulty_best(
    logits: tl.tensor,
    best: tl.tensor,
    n: tl.tensor,
    row_stride: tl.tensor,
    parts: tl.tensor,
    FAULT: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """The best of PART columns; `last` orders equal logits the other way round, `tail` takes masked columns for zeros."""
    row, column = tile(n, PART)
    inside = column < n
    value = tl.load(logits + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    place = column if FAULT == "last" else n - 1 - column
    if FAULT == "tail":
        place = tl.where(inside, place, 0)
    both = (ordered(value).to(tl.int64) << 32) + place.to(tl.int64)
    if FAULT != "tail":
        both = tl.where(inside, both, -0x7FFFFFFFFFFFFFFF)
    tl.store(best + row * parts + tl.program_id(0) % parts, tl.max(both, 0))


def finished(best: Any, n: int) -> Any:
    """argmax's second launch."""
    rows, parts = best.shape
    ids = torch.empty(rows, dtype=torch.int32, device=best.device)
    flags = torch.empty(rows, dtype=torch.uint8, device=best.device)
    argmax_kernel[(rows,)](best, ids, flags, n, parts, PARTS=power_of_two(parts), num_warps=1)
    return ids, flags


def argmax(logits: Any, fault: str, part: int = 4096) -> Any:
    """Both launches, with that fault in the first one."""
    rows, n = logits.shape
    parts = -(-n // part)
    best = torch.empty((rows, parts), dtype=torch.int64, device=logits.device)
    grid, stride = (rows * parts,), logits.stride(0)
    if fault:
        faulty_best[grid](logits, best, n, stride, parts, FAULT=fault, PART=part, num_warps=8)
    else:
        best_of_parts[grid](logits, best, n, stride, parts, PART=part, num_warps=2)
    return finished(best, n)


@red("argmax_rows", profile="bf16_logits", gate="exact", name="triton.last_of_equal", **TRITON)
def last_of_equal(logits: Any) -> Any:
    """Of equal logits the last one is picked (counted from the row's end)."""
    ids, flags = argmax(logits, "last")
    return logits.shape[1] - 1 - ids, flags


@red("argmax_rows", profile="bf16_logits", gate="exact", name="triton.tail_of_zeros", **TRITON)
def tail_of_zeros(logits: Any) -> Any:
    """Columns behind the row count as logits of 0."""
    return argmax(logits, "tail")


@red("argmax_rows", profile="bf16_logits", gate="shapes", name="triton.first_part", **TRITON)
def first_part(logits: Any) -> Any:
    """Only the first 4,096 logits of a row are looked at."""
    best, _ = parts_of(logits)
    return finished(best[:, :1].contiguous(), logits.shape[1])


@green("argmax_rows", profile=("bf16_logits", "float32_logits"), name="triton.parts", **TRITON)
def small_parts(logits: Any) -> Any:
    """Parts of 512 logits, two warps."""
    return argmax(logits, "", 512)


@red("pick_ids", profile="bf16_logits", gate="exact", name="triton.no_fallback", **TRITON)
def no_fallback(logits: Any, fallback: Any) -> Any:
    """The largest logit's place, trusted or not."""
    return argmax_rows_triton(logits)


@red("pick_ids", profile="bf16_logits", gate="exact", name="triton.flag_lost", **TRITON)
def flag_lost(logits: Any, fallback: Any) -> Any:
    """No row is flagged."""
    ids, flags = argmax_rows_triton(logits)
    return torch.where(flags != 0, fallback, ids), torch.zeros_like(flags)


# -- pooling


def pooled(x: Any, positions: Any, cells: Any, bias: Any, scale: Any, root: float, patches: int) -> Any:  # fmt: skip
    """The mean profile's kernel over that many patches, in smaller stretches."""
    rows, d = cells.shape[0], x.shape[1]
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    pool_kernel[(rows * -(-d // 64),)](
        x, positions, cells, bias, scale, out, patches, d,
        x.stride(0), positions.stride(0), cells.stride(0), root,
        WINDOW=3, EACH=False, PATCHES=16, COLUMNS=64, num_warps=2,
    )  # fmt: skip
    return out


@red("vit_pool", profile="mean", gate="shapes", name="triton.last_stretch", **TRITON)
def last_stretch(x: Any, positions: Any, cells: Any, bias: Any, scale: Any, *, root: float) -> Any:
    """Patches behind the last whole stretch of 16 are not looked at."""
    return pooled(x, positions, cells, bias, scale, root, x.shape[0] // 16 * 16)


@red("vit_pool", profile="mean", gate="exact", name="triton.padding_in_cell_0", **TRITON)
def padding_in_cell_0(
    x: Any, positions: Any, cells: Any, bias: Any, scale: Any, *, root: float
) -> Any:
    """-1 / 3 is 0 in integers: padding is counted in the first cell."""
    return vit_pool_triton(x, positions.clamp(min=0), cells, bias, scale, root=root, profile="mean")


@red("vit_pool", profile="each_step", gate="exact", name="triton.in_registers", **TRITON)
def pool_in_registers(
    x: Any, positions: Any, cells: Any, bias: Any, scale: Any, *, root: float
) -> Any:
    """Steps behind the mean are not rounded where their roundings are named."""
    return vit_pool_triton(x, positions, cells, bias, scale, root=root, profile="mean")


@green("vit_pool", profile="mean", name="triton.small_stretches", **TRITON)
def small_stretches(
    x: Any, positions: Any, cells: Any, bias: Any, scale: Any, *, root: float
) -> Any:
    """Stretches of 16 patches, 64 columns a program, two warps."""
    return pooled(x, positions, cells, bias, scale, root, x.shape[0])
