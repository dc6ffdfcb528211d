"""Planted picks: other ties, lanes past the row, NaN and infinities passed over, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.argmax_rows import argmax_rows_torch
from contract.kernels.logit_rows import untrusted
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Picked = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("bf16_logits", "float32_logits")


def flagged(ids: torch.Tensor, logits: torch.Tensor) -> Picked:
    """These ids with the right flags."""
    return ids.to(torch.int32), untrusted(logits).to(torch.uint8)


# -- ties


@red("argmax_rows", profile=BOTH, gate="exact")
def last_of_equals(logits: torch.Tensor) -> Picked:
    """A comparison with >= keeps the last of equal values."""
    return flagged(logits.shape[-1] - 1 - logits.flip(-1).argmax(-1), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def lowest_thread_of_equals(logits: torch.Tensor) -> Picked:
    """Thread t holds t, t + 256, ...; of equal values the lowest thread's wins."""
    n = logits.shape[-1]
    padded = torch.nn.functional.pad(logits, (0, -n % 256), value=-torch.inf)
    by_thread = padded.unflatten(-1, (-1, 256)).transpose(-1, -2).flatten(-2)
    place = by_thread.argmax(-1)
    steps = padded.shape[-1] // 256
    return flagged((place % steps) * 256 + place // steps, logits)


@red("argmax_rows", profile="bf16_logits", gate="exact")
def words_compared(logits: torch.Tensor) -> Picked:
    """The bits are compared as signed integers: negative values stand in reverse order, -0 below them."""
    return flagged(logits.contiguous().view(torch.int16).argmax(-1), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def minus_zero_below_zero(logits: torch.Tensor) -> Picked:
    """-0 is taken for less than +0."""
    lower = torch.where(
        (logits == 0) & logits.signbit(), torch.finfo(logits.dtype).tiny * -1.0, logits
    )
    return flagged(lower.argmax(-1), logits)


@red("argmax_rows", profile="float32_logits", gate="exact")
def in_bf16(logits: torch.Tensor) -> Picked:
    """Logits are rounded to bf16 before they are compared: close ones become equal."""
    return flagged(logits.bfloat16().argmax(-1), logits)


# -- indices


@red("argmax_rows", profile=BOTH, gate="exact")
def off_by_one(logits: torch.Tensor) -> Picked:
    """Ids count from 1."""
    ids, flags = argmax_rows_torch(logits)
    return ids + 1, flags


@red("argmax_rows", profile=BOTH, gate="exact")
def index_in_bf16(logits: torch.Tensor) -> Picked:
    """The index travels beside the value in bf16, which holds no odd number above 256."""
    ids, flags = argmax_rows_torch(logits)
    return ids.bfloat16().to(torch.int32), flags


@red("argmax_rows", profile=BOTH, gate="exact")
def last_place_missing(logits: torch.Tensor) -> Picked:
    """The tail of the row is not read."""
    n = logits.shape[-1]
    return flagged(logits[:, : max(1, n - n % 8 - (n % 8 == 0))].argmax(-1), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def padded_with_zeros(logits: torch.Tensor) -> Picked:
    """The last tile's empty lanes are 0: they win where all logits are negative."""
    padded = torch.nn.functional.pad(logits, (0, 8 - logits.shape[-1] % 8))
    return flagged(padded.argmax(-1), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def padded_lanes_win(logits: torch.Tensor) -> Picked:
    """Empty lanes are -inf and a comparison with >= lets them win a row that is -inf everywhere."""
    n = logits.shape[-1]
    padded = torch.nn.functional.pad(logits, (0, 8 - n % 8), value=-torch.inf)
    last = padded.shape[-1] - 1
    empty = (logits == -torch.inf).all(-1)
    return flagged(torch.where(empty, last, logits.argmax(-1)), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def previous_row(logits: torch.Tensor) -> Picked:
    """The pick of the row before."""
    ids, flags = argmax_rows_torch(logits)
    return ids.roll(1), flags


# -- NaN and infinities


@red("argmax_rows", profile=BOTH, gate="exact")
def nan_passed_over(logits: torch.Tensor) -> Picked:
    """NaN compares false and is never picked."""
    return flagged(torch.where(logits.isnan(), -torch.inf, logits).argmax(-1), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def start_value_left(logits: torch.Tensor) -> Picked:
    """A row of NaN, or of -inf, leaves the index that the loop began with."""
    ids, _ = argmax_rows_torch(logits)
    wrong = ~(logits > -torch.inf).any(-1) | logits.isnan().any(-1)
    return flagged(torch.where(wrong, 2**31 - 1, ids), logits)


@red("argmax_rows", profile=BOTH, gate="exact")
def nan_not_flagged(logits: torch.Tensor) -> Picked:
    """Only infinities are flagged."""
    return logits.argmax(-1).to(torch.int32), logits.amax(-1).isinf().to(torch.uint8)


@red("argmax_rows", profile=BOTH, gate="exact")
def infinity_not_flagged(logits: torch.Tensor) -> Picked:
    """Only NaN is flagged."""
    return logits.argmax(-1).to(torch.int32), logits.isnan().any(-1).to(torch.uint8)


@red("argmax_rows", profile=BOTH, gate="exact")
def masked_tokens_flagged(logits: torch.Tensor) -> Picked:
    """Any infinity is flagged, a masked token's too."""
    return logits.argmax(-1).to(torch.int32), (~logits.isfinite()).any(-1).to(torch.uint8)


@red("argmax_rows", profile=BOTH, gate="exact")
def flag_of_the_batch(logits: torch.Tensor) -> Picked:
    """One flag for all rows."""
    ids, flags = argmax_rows_torch(logits)
    return ids, flags.amax().expand_as(flags).clone()


# -- legal variants


@green("argmax_rows", profile=BOTH)
def by_equality(logits: torch.Tensor) -> Picked:
    """The lowest place that equals the maximum, or holds a NaN where one is there."""
    top = logits.amax(-1, keepdim=True)
    found = torch.where(top.isnan(), logits.isnan(), logits == top)
    place = torch.arange(logits.shape[-1])
    return flagged(torch.where(found, place, logits.shape[-1]).amin(-1), logits)


@green("argmax_rows", profile=BOTH)
def in_tiles(logits: torch.Tensor) -> Picked:
    """96 places at a time; a later tile wins only with a larger value."""
    value, ids = logits[:, 0].clone(), torch.zeros(len(logits), dtype=torch.long)
    for start in range(0, logits.shape[-1], 96):
        tile = logits[:, start : start + 96]
        top = tile.amax(-1)
        better = (top > value) | (top.isnan() & ~value.isnan())
        first = (start == 0) | better
        ids = torch.where(torch.as_tensor(first), tile.argmax(-1) + start, ids)
        value = torch.where(better, top, value)
    return flagged(ids, logits)


@green("argmax_rows", profile=BOTH)
def in_float64(logits: torch.Tensor) -> Picked:
    """Logits are widened first."""
    return flagged(logits.double().argmax(-1), logits)
