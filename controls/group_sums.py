"""Planted group sums: other trees and formats, and a legal variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

GROUP = 64
BOTH = ("float32", "bf16_rows")


@red("group_sums", profile=BOTH, gate="exact")
def halves_added(x: torch.Tensor) -> torch.Tensor:
    """a[i] + a[i + n / 2]: the tree of a warp's shuffles."""
    sums = x.float().reshape(x.shape[0], -1, GROUP)
    while sums.shape[-1] > 1:
        low, high = sums.chunk(2, dim=-1)
        sums = low + high
    return sums.squeeze(-1)


@red("group_sums", profile=BOTH, gate="exact")
def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
    """A running sum."""
    sums = x.float().reshape(x.shape[0], -1, GROUP)
    total = sums[..., 0]
    for k in range(1, GROUP):
        total = total + sums[..., k]
    return total


@red("group_sums", profile=BOTH, gate="exact")
def in_float64(x: torch.Tensor) -> torch.Tensor:
    """The correctly rounded sum is not the tree's."""
    return x.double().reshape(x.shape[0], -1, GROUP).sum(-1).float()


@red("group_sums", profile=BOTH, gate="exact")
def in_bf16(x: torch.Tensor) -> torch.Tensor:
    """Every addition is rounded to bf16."""
    sums = x.bfloat16().reshape(x.shape[0], -1, GROUP)
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return sums.squeeze(-1).float()


@red("group_sums", profile=BOTH, gate="shapes")
def group_of_32(x: torch.Tensor) -> torch.Tensor:
    """Only the first half of each group."""
    sums = x.float().reshape(x.shape[0], -1, GROUP)[..., : GROUP // 2]
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return sums.squeeze(-1)


@green("group_sums", profile=BOTH)
def through_pairs_of_pairs(x: torch.Tensor) -> torch.Tensor:
    """Two levels at a time, right operand first: additions commute."""
    sums = x.float().reshape(x.shape[0], -1, GROUP)
    while sums.shape[-1] > 1:
        a, b, c, d = (sums[..., k::4] for k in range(4))
        sums = (d + c) + (b + a)
    return sums.squeeze(-1)
