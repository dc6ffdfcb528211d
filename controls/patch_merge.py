"""Planted mergers of patches: other orders of the same values, values that do not keep their bits, legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.patch_merge import patch_merge_torch
from contract.lazy import lazy
from contract.references.patch_merge import MERGE

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def blocks_of(x: Tensor) -> Tensor:
    """(strip, block, row, column, d)."""
    rows, two, wide, d = x.shape
    return x.reshape(rows, two, wide // MERGE, MERGE, d).permute(0, 2, 1, 3, 4)


def joined(blocks: Tensor) -> Tensor:
    """The last three dims of such blocks side by side."""
    return blocks.clone(memory_format=torch.contiguous_format).flatten(2)


@red("patch_merge", profile="moved", gate="shapes")
def raster_order(x: Tensor) -> Tensor:
    """Four patches that follow each other in raster order are joined."""
    rows, _, wide, _ = x.shape
    return x.clone(memory_format=torch.contiguous_format).view(rows, wide // MERGE, -1)


@red("patch_merge", profile="moved", gate="shapes")
def block_transposed(x: Tensor) -> Tensor:
    """Upper right and lower left are exchanged."""
    return joined(blocks_of(x).transpose(2, 3))


@red("patch_merge", profile="moved", gate="shapes")
def block_turned(x: Tensor) -> Tensor:
    """The lower row of patches comes first."""
    return joined(blocks_of(x).flip(2))


@red("patch_merge", profile="moved", gate="shapes")
def values_interleaved(x: Tensor) -> Tensor:
    """The four patches' values alternate, as a fold of d channels gives them."""
    return joined(blocks_of(x).permute(0, 1, 4, 2, 3))


@red("patch_merge", profile="moved", gate="shapes")
def last_block_of_an_odd_strip_dropped(x: Tensor) -> Tensor:
    """Blocks are taken in pairs."""
    out = patch_merge_torch(x)
    out[:, out.shape[1] // 2 * 2 :] = 0
    return out


@red("patch_merge", profile="moved", gate="stress")
def subnormals_flushed(x: Tensor) -> Tensor:
    """The move goes through an arithmetic unit that flushes."""
    tiny = x.float().abs() < 2.0**-126
    return patch_merge_torch(torch.where(tiny, x * 0.0, x))


@red("patch_merge", profile="moved", gate="stress")
def zero_signs_lost(x: Tensor) -> Tensor:
    """0 is added on the way."""
    return patch_merge_torch(x + 0.0)


@red("patch_merge", profile="moved", gate="stress")
def through_fp16(x: Tensor) -> Tensor:
    """The values pass through fp16."""
    return patch_merge_torch(x.half().to(x.dtype))


@green("patch_merge", profile="moved")
def block_by_block(x: Tensor) -> Tensor:
    """One concatenation a block."""
    parts = [
        torch.cat([x[:, i, j + k] for i in range(MERGE) for k in range(MERGE)], -1)
        for j in range(0, x.shape[2], MERGE)
    ]
    return torch.stack(parts, 1)


@green("patch_merge", profile="moved")
def as_integers(x: Tensor) -> Tensor:
    """The bits are moved as integers."""
    return joined(blocks_of(x.view(torch.int16))).view(x.dtype)
