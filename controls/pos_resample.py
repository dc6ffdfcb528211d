"""Planted resamplers of position tables: faults that kernels have had, and legal variants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def added(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """The right positions of these taps and weights, rounded and added."""
    total = (table[taps.long()].float() * weights[:, :, None]).sum(1)
    return hidden + total.to(table.dtype)


# -- taps and weights


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def rows_and_columns_of_the_table_exchanged(
    table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor
) -> Tensor:
    """The table is read down its columns."""
    side = math.isqrt(table.shape[0])
    return added(table, taps % side * side + taps // side, weights, hidden)


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def weights_of_the_axes_exchanged(
    table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor
) -> Tensor:
    """(low, high) and (high, low) count for each other."""
    return added(table, taps, weights[:, [0, 2, 1, 3]], hidden)


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def fractions_from_the_far_end(
    table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor
) -> Tensor:
    """A tap counts for what the opposite one should."""
    return added(table, taps, weights.flip(-1), hidden)


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def nearest_entry(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """The entry of the largest weight alone."""
    best = weights.argmax(-1, keepdim=True)
    return hidden + table[taps.gather(-1, best).long()[:, 0]]


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def last_tap_dropped(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """Three of the four taps are summed."""
    return added(table, taps[:, :3], weights[:, :3], hidden)


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def taps_of_the_next_patch(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """Every patch takes the position after its own."""
    return added(table, taps.roll(-1, 0), weights.roll(-1, 0), hidden)


# -- arithmetic


@red("pos_resample", profile="each", gate="exact", adds="yes")
def summed_in_bf16(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """Each product is rounded, and so is each sum."""
    total = torch.zeros_like(hidden)
    for j in range(taps.shape[1]):
        total = total + (table[taps[:, j].long()].float() * weights[:, j, None]).to(table.dtype)
    return hidden + total


@red("pos_resample", profile=("each", "fused"), gate="shapes", adds="yes")
def weights_in_bf16(
    table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor, *, profile: str
) -> Tensor:
    """The weights are cast to the table's format."""
    total = (table[taps.long()].float() * weights.to(table.dtype).float()[:, :, None]).sum(1)
    if profile == "each":
        return hidden + total.to(table.dtype)
    return (hidden.float() + total).to(table.dtype)


@red("pos_resample", profile="each", gate="exact", adds="yes")
def position_not_rounded(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """The sum of the taps is added in fp32."""
    total = (table[taps.long()].float() * weights[:, :, None]).sum(1)
    return (hidden.float() + total).to(table.dtype)


@red("pos_resample", profile="fused", gate="exact", adds="yes")
def position_rounded(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """The sum of the taps is rounded before it is added."""
    return added(table, taps, weights, hidden)


@red("pos_resample", profile="each", gate="shapes", adds="yes")
def positions_alone(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """The patches are overwritten, not added to."""
    return (table[taps.long()].float() * weights[:, :, None]).sum(1).to(table.dtype)


@red("pos_resample", profile="each", gate="shapes", adds="no")
def fp16_result(table: Tensor, taps: Tensor, weights: Tensor) -> Tensor:
    """The sum passes through fp16."""
    total = (table[taps.long()].float() * weights[:, :, None]).sum(1)
    return total.half().to(table.dtype)


# -- legal variants


@green("pos_resample", profile=("each", "fused"), adds="yes")
def taps_from_the_last(
    table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor, *, profile: str
) -> Tensor:
    """One multiply-add after the other, in float64."""
    total = torch.zeros(hidden.shape, dtype=torch.float64)
    for j in reversed(range(taps.shape[1])):
        total += table[taps[:, j].long()].double() * weights[:, j, None].double()
    if profile == "each":
        return hidden + total.float().to(table.dtype)
    return (hidden.double() + total).float().to(table.dtype)


@green("pos_resample", profile="each", adds="no")
def rows_first(table: Tensor, taps: Tensor, weights: Tensor) -> Tensor:
    """Pairs of a row first, then the two rows."""
    terms = table[taps.long()].float() * weights[:, :, None]
    upper, lower = terms[:, 0] + terms[:, 1], terms[:, 2] + terms[:, 3]
    return (upper + lower).to(table.dtype)


@green("pos_resample", profile="each", adds="yes")
def row_by_row(table: Tensor, taps: Tensor, weights: Tensor, hidden: Tensor) -> Tensor:
    """One patch at a time, as a product of its weights with its entries."""
    rows = [w @ table[t.long()].float() for t, w in zip(taps, weights, strict=True)]
    return hidden + torch.stack(rows).to(table.dtype)
