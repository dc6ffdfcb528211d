"""Planted cache writes: other slots, other codes, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.kv_append import append, kv_append_int8_torch, kv_append_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("kv_append", profile="moved", gate="exact", store=("bf16", "fp16", "fp32"), ring="no")
def neighbour_slot(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """The slot before: positions counted from one."""
    kv_append_torch(cache, new, (slot - 1).clamp(min=0))


@red("kv_append", profile="moved", gate="exact", store=("bf16", "fp32"), ring="no")
def next_slot_too(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """The row is also written to the slot after it."""
    kv_append_torch(cache, new, (slot + 1).clamp(max=cache.shape[1] - 1))
    kv_append_torch(cache, new, slot)


@red("kv_append", profile="moved", gate="exact", store=("bf16", "fp32"), ring="no")
def first_slot_of_all(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """Every sequence writes where the first one does."""
    kv_append_torch(cache, new, slot[:1].expand_as(slot))


@red("kv_append", profile="moved", gate="exact", store=("bf16", "fp32"), ring="no")
def whole_cache_rewritten(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """All slots go through an addition: -0 becomes 0."""
    cache += 0.0
    kv_append_torch(cache, new, slot)


@red("kv_append", profile="moved", gate="exact", store="fp16", ring="no")
def cache_through_bf16(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """All slots are converted to bf16 and back."""
    cache.copy_(cache.bfloat16())
    kv_append_torch(cache, new, slot)


@red("kv_append", profile="moved", gate="exact", store="bf16", ring="no")
def bf16_through_fp16(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """The new row is converted to fp16 first."""
    kv_append_torch(cache, new.half().bfloat16(), slot)


@red("kv_append", profile="moved", gate="exact", store="fp32", ring="no")
def fp32_through_bf16(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """The new row is converted to bf16 first."""
    kv_append_torch(cache, new.bfloat16(), slot)


@red("kv_append", profile="moved", gate="exact", store="fp16", ring="no")
def fp16_saturated(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """Values beyond fp16 are stored as its largest."""
    kv_append_torch(cache, new.float().clamp(-65504.0, 65504.0), slot)


@red("kv_append", profile="moved", gate="exact", store="fp16", ring="no")
def fp16_subnormals_flushed(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """Values below fp16's smallest normal one are stored as 0."""
    small = new.float().abs() < 2.0**-14
    kv_append_torch(cache, torch.where(small, 0.0, new.float()).copysign(new.float()), slot)


@red("kv_append", profile="moved", gate="exact", store=("bf16", "fp32"), ring="no")
def head_before(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """Each head's row goes to the next head."""
    kv_append_torch(cache, new.roll(1, 1).roll(1, -1), slot)


@red("kv_append", profile="moved", gate="exact", store=("bf16", "fp16"), ring="yes")
def ring_of_one_less(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> None:
    """The remainder by the number of slots less one."""
    append(cache, new.to(cache.dtype), position % max(1, cache.shape[1] - 1), None)


@red("kv_append", profile="moved", gate="exact", store="bf16", ring="yes")
def ring_one_ahead(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> None:
    """The slot of the next position."""
    kv_append_torch(cache, new, position=position + 1)


@red("kv_append", profile="moved", gate="exact", store="bf16", ring="yes")
def last_slot_overwritten(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> None:
    """A full ring writes its last slot again and again."""
    kv_append_torch(cache, new, position.clamp(max=cache.shape[1] - 1))


@green("kv_append", profile="moved", store=("bf16", "fp16", "fp32"), ring="no")
def one_sequence_at_a_time(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """A copy for each sequence."""
    for i, place in enumerate(slot.tolist()):
        cache[i, place].copy_(new[i])


@green("kv_append", profile="moved", store=("bf16", "fp16"), ring="yes")
def chosen_by_a_mask(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> None:
    """Every slot is selected: the old row or the new one."""
    here = torch.arange(cache.shape[1]) == (position % cache.shape[1])[:, None]
    cache.copy_(torch.where(here[:, :, None, None], new[:, None].to(cache.dtype), cache))


@red("kv_append_int8", profile="divide", gate="exact", ring="no")
def half_away(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor, *, scale: float) -> None:
    """Halves are rounded away from zero."""
    quotient = (new.float() / scale).clamp(-127.0, 127.0)
    append(cache, (quotient.abs() + 0.5).floor().copysign(quotient).to(torch.int8), slot, None)


@red("kv_append_int8", profile="divide", gate="exact", ring="no")
def truncated(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor, *, scale: float) -> None:
    """The conversion cuts the fraction off."""
    append(cache, (new.float() / scale).clamp(-127.0, 127.0).to(torch.int8), slot, None)


@red("kv_append_int8", profile="divide", gate="exact", ring="no")
def wraps(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor, *, scale: float) -> None:
    """Codes are not clamped: 130 is stored as -126."""
    codes = (new.float() / scale).clamp(-(2.0**30), 2.0**30).round().to(torch.int32)
    append(cache, codes.to(torch.int8), slot, None)


@red("kv_append_int8", profile="divide", gate="exact", ring="no")
def down_to_minus_128(
    cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor, *, scale: float
) -> None:
    """The lower end is the type's."""
    append(cache, (new.float() / scale).clamp(-128.0, 127.0).round().to(torch.int8), slot, None)


@red("kv_append_int8", profile="divide", gate="exact", ring="no")
def cache_quantised_again(
    cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor, *, scale: float
) -> None:
    """All slots are brought to the scale of the largest value."""
    largest = (cache.float().abs().max() * scale).clamp(min=float(new.float().abs().max()))
    cache.copy_((cache.float() * scale / largest * 127.0).round().to(torch.int8))
    kv_append_int8_torch(cache, new, slot, scale=float(largest) / 127.0 or scale)


@red("kv_append_int8", profile="divide", gate="exact", ring="yes")
def ring_one_behind(
    cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor, *, scale: float
) -> None:
    """The slot of the position before."""
    kv_append_int8_torch(cache, new, position=position + cache.shape[1] - 1, scale=scale)


@green("kv_append_int8", profile="divide", ring="no")
def divided_in_float64(
    cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor, *, scale: float
) -> None:
    """The quotient is kept wider."""
    codes = (new.double() / scale).clamp(-127.0, 127.0).round()
    append(cache, codes.to(torch.int8), slot, None)
