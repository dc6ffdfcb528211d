"""Planted embedding lookups: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("embed", profile="once", gate="exact", scaled="yes")
def scale_not_rounded(ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The root of the width stays in fp32."""
    return (table[ids].float() * scale).to(table.dtype)


@red("embed", profile="once", gate="exact", scaled="yes")
def scale_applied_twice(
    ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Once in the lookup and once by the caller."""
    return table[ids] * scale.to(table.dtype) * scale.to(table.dtype)


@red("embed", profile="once", gate="exact", scaled="yes")
def not_scaled(ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The row as it is."""
    return table[ids]


@red("embed", profile="once", gate="exact", scaled="yes")
def divided_by_the_root(
    ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """row / sqrt(d), the convention of image rows."""
    return table[ids] / scale.to(table.dtype)


@red("embed", profile="once", gate="exact", scaled="no")
def next_id(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Ids that count from 1."""
    return table[(ids + 1).clamp(max=table.shape[0] - 1)]


@red("embed", profile="once", gate="exact", scaled="no")
def ids_by_place(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Row r of the table for place r."""
    return table[torch.arange(ids.shape[0]) % table.shape[0]]


@red("embed", profile="once", gate="exact", scaled="no")
def last_row_is_padding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The last id is taken for a padding row of zeros."""
    keep = (ids < table.shape[0] - 1)[:, None]
    return torch.where(keep, table[ids], torch.zeros((), dtype=table.dtype))


@red("embed", profile="once", gate="exact", scaled="no")
def subnormals_flushed(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A move that passes through arithmetic: subnormals become zeros."""
    row = table[ids]
    tiny = torch.finfo(row.dtype).tiny
    return torch.where(row.abs() < tiny, row * 0.0, row)


@green("embed", profile="once", scaled="yes")
def through_float64(ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The product in float64: it is exact in fp32, too."""
    wide = table[ids].double() * scale.to(table.dtype).double()
    return wide.float().to(table.dtype)


@green("embed", profile="once", scaled="no")
def gathered(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """torch.gather, column by column."""
    return table.gather(0, ids.long()[:, None].expand(-1, table.shape[1]))
