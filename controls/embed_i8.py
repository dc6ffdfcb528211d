"""Planted lookups in int8 tables: faults that kernels have had, and a legal variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("once", "fp16_scales")


@red("embed_i8", profile=BOTH, gate="exact")
def unsigned_codes(
    ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor
) -> torch.Tensor:
    """Bytes are read as 0 to 255."""
    picked = codes[ids].view(torch.uint8)
    return (picked.float() * row_scales[ids].float()[:, None]).bfloat16()


@red("embed_i8", profile=BOTH, gate="exact")
def scale_rounded_first(
    ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor
) -> torch.Tensor:
    """The scale in bf16: two roundings."""
    return codes[ids].bfloat16() * row_scales[ids].bfloat16()[:, None]


@red("embed_i8", profile=BOTH, gate="exact")
def scale_of_the_next_row(
    ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor
) -> torch.Tensor:
    """Codes of one id, scale of the one after."""
    scales = row_scales.roll(-1)[ids].float()
    return (codes[ids].float() * scales[:, None]).bfloat16()


@red("embed_i8", profile=BOTH, gate="exact")
def scale_by_place(
    ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor
) -> torch.Tensor:
    """The scale of the row's place in the batch."""
    place = torch.arange(ids.shape[0]) % codes.shape[0]
    return (codes[ids].float() * row_scales[place].float()[:, None]).bfloat16()


@red("embed_i8", profile=BOTH, gate="exact")
def next_id(ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor) -> torch.Tensor:
    """Ids that count from 1."""
    later = (ids + 1).clamp(max=codes.shape[0] - 1)
    return (codes[later].float() * row_scales[later].float()[:, None]).bfloat16()


@red("embed_i8", profile=BOTH, gate="exact")
def lowest_code_clamped(
    ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor
) -> torch.Tensor:
    """-128 is read as -127."""
    picked = codes[ids].clamp(min=-127)
    return (picked.float() * row_scales[ids].float()[:, None]).bfloat16()


@green("embed_i8", profile=BOTH)
def in_float64(ids: torch.Tensor, codes: torch.Tensor, row_scales: torch.Tensor) -> torch.Tensor:
    """The product kept wider, rounded to fp32 on the way."""
    return (codes[ids].double() * row_scales[ids].double()[:, None]).float().bfloat16()
