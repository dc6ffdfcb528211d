"""Planted patch embeddings: faults that kernels have had, and legal variants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.patch_embed import finished, patch_embed_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def mapped(patches: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """y with its bias inside."""
    return (patches.float() @ weight.float().T + offset.float()).to(patches.dtype)


# -- the product


@red("patch_embed", profile="inside", gate="exact", adds="both")
def bias_outside(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """The product is rounded before the bias is added."""
    return patch_embed_torch(patches, weight, offset, table, places, profile="outside")


@red("patch_embed", profile="outside", gate="exact", adds="both")
def bias_inside(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """The bias is added before the product is rounded."""
    return patch_embed_torch(patches, weight, offset, table, places, profile="inside")


@red("patch_embed", profile="inside", gate="exact", adds=("both", "bias"))
def accumulator_in_bf16(
    patches: Tensor,
    weight: Tensor,
    offset: Tensor,
    table: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """The running sum is rounded after every 16 products."""
    total = offset.expand(patches.shape[0], -1)
    for x, w in zip(patches.float().split(16, 1), weight.float().split(16, 1), strict=True):
        total = (total.float() + x @ w.T).to(patches.dtype)
    return finished(total, table, places)


@red("patch_embed", profile="inside", gate="exact", adds="bias")
def split_in_two_and_rounded(patches: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """Both halves of k are rounded before they are added."""
    half = patches.shape[1] // 2
    first = patches[:, :half].float() @ weight[:, :half].float().T
    second = patches[:, half:].float() @ weight[:, half:].float().T
    total = first.to(patches.dtype).float() + second.to(patches.dtype).float()
    return (total + offset.float()).to(patches.dtype)


@red("patch_embed", profile="inside", gate="exact", adds="bias")
def accumulator_in_fp16(patches: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """The running sum has 11 bits and overflows at 65,520."""
    total = torch.zeros(patches.shape[0], weight.shape[0], dtype=torch.float16)
    for x, w in zip(patches.float().split(16, 1), weight.float().split(16, 1), strict=True):
        total = (total.float() + x @ w.T).half()
    return (total.float() + offset.float()).to(patches.dtype)


@red("patch_embed", profile="inside", gate="exact", adds="both")
def last_product_dropped(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """k is taken in steps of two, and a step is left out."""
    return finished(mapped(patches[:, :-1], weight[:, :-1], offset), table, places)


@red("patch_embed", profile="inside", gate="shapes", adds=("both", "bias"))
def channels_first(
    patches: Tensor,
    weight: Tensor,
    offset: Tensor,
    table: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """Patches of (row, column, channel) meet a weight of (channel, row, column)."""
    side = math.isqrt(patches.shape[1] // 3)
    turned = patches.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2).flatten(1)
    return finished(mapped(turned, weight, offset), table, places)


@red("patch_embed", profile="inside", gate="shapes", adds=("both", "bias"))
def bias_left_out(
    patches: Tensor,
    weight: Tensor,
    offset: Tensor,
    table: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """x W^T alone."""
    return finished(mapped(patches, weight, torch.zeros_like(offset)), table, places)


# -- the position


@red("patch_embed", profile="inside", gate="shapes", adds="both")
def position_off_by_one(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """Each patch takes the entry after its own."""
    return finished(mapped(patches, weight, offset), table, (places + 1) % table.shape[0])


@red("patch_embed", profile="inside", gate="shapes", adds="both")
def position_by_the_order(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """The entry is the patch's number in the batch, not its place."""
    number = torch.arange(places.shape[0])[:, None].expand(places.shape) % table.shape[0]
    return finished(mapped(patches, weight, offset), table, number)


@red("patch_embed", profile="inside", gate="exact", adds="both")
def position_inside(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """Product, bias and position have one rounding."""
    y = patches.float() @ weight.float().T + offset.float()
    return finished(y, table.float(), places).to(patches.dtype)


@red("patch_embed", profile="inside", gate="exact", adds="position")
def entries_added_one_by_one(
    patches: Tensor, weight: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """y + p + q, where p + q is rounded first."""
    y = (patches.float() @ weight.float().T).to(patches.dtype)
    for axis in range(places.shape[1]):
        y = y + table[places[:, axis].long()]
    return y


@red("patch_embed", profile="inside", gate="shapes", adds="position")
def first_entry_alone(patches: Tensor, weight: Tensor, table: Tensor, places: Tensor) -> Tensor:
    """The second axis is not added."""
    y = (patches.float() @ weight.float().T).to(patches.dtype)
    return finished(y, table, places[:, :1])


# -- legal variants


@green("patch_embed", profile="inside", adds="both")
def chunks_from_the_bias(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """The sum begins with the bias and runs over chunks of 64 in fp32."""
    total = offset.float().expand(patches.shape[0], -1)
    for x, w in zip(patches.float().split(64, 1), weight.float().split(64, 1), strict=True):
        total = total + x @ w.T
    return finished(total.to(patches.dtype), table, places)


@green("patch_embed", profile="inside", adds="bias")
def columns_reversed(patches: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """Products from the last column on, the bias last."""
    return mapped(patches.flip(1), weight.flip(1), offset)


@green("patch_embed", profile="inside", adds=("both", "bias", "position"))
def in_float64(
    patches: Tensor,
    weight: Tensor,
    offset: Tensor | None = None,
    table: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """The sum is kept wider."""
    y = patches.double() @ weight.double().T
    y = y if offset is None else y + offset.double()
    return finished(y.float().to(patches.dtype), table, places)


@green("patch_embed", profile="outside", adds="both")
def row_by_row(
    patches: Tensor, weight: Tensor, offset: Tensor, table: Tensor, places: Tensor
) -> Tensor:
    """One patch at a time, as a sum of products."""
    rows = [(x.float() * weight.float()).sum(1) for x in patches]
    return finished(torch.stack(rows).to(patches.dtype) + offset, table, places)
