"""Planted convolutions with a history: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.conv4_ring_silu import (
    conv4_ring_silu_torch,
    convolved,
    in_order,
    kept_columns,
)
from contract.lazy import lazy
from contract.references.conv4_ring_silu import TAPS

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Pair = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("two_step", "once")


def stored(total: T) -> torch.Tensor:
    """The sum rounded, silu rounded."""
    return torch.nn.functional.silu(total.bfloat16())


def shifted(x: T, past: T) -> tuple[torch.Tensor, torch.Tensor]:
    """All columns in order of time, and the history that is kept of them."""
    columns = torch.cat([past, x], -1)
    return columns, kept_columns(columns, past.shape[-1], None, x.shape[-1])


# -- roundings


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def sum_not_rounded(x: T, weight: T, past: T) -> Pair:
    """silu reads the fp32 sum."""
    return conv4_ring_silu_torch(x, weight, past, profile="once")


@red("conv4_ring_silu", profile="once", gate="exact", layout="shift")
def sum_rounded(x: T, weight: T, past: T) -> Pair:
    """Two operators where one rounding is named."""
    return conv4_ring_silu_torch(x, weight, past, profile="two_step")


@red("conv4_ring_silu", profile=BOTH, gate="exact", layout="shift")
def products_rounded(x: T, weight: T, past: T) -> Pair:
    """Products and sums in bf16."""
    columns, new_past = shifted(x, past)
    windows = columns.unfold(-1, TAPS, 1)[:, -x.shape[-1] :]
    total = torch.zeros_like(x)
    for i in range(TAPS):
        total = total + windows[..., i] * weight[:, None, i]
    return torch.nn.functional.silu(total), new_past


# -- taps


@red("conv4_ring_silu", profile=BOTH, gate="exact", layout="shift")
def taps_reversed(x: T, weight: T, past: T) -> Pair:
    """A convolution as mathematicians write it: the first tap meets the newest column."""
    columns, new_past = shifted(x, past)
    return stored(convolved(columns, weight.flip(-1), x.shape[-1])), new_past


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def oldest_tap_missing(x: T, weight: T, past: T) -> Pair:
    """Three taps."""
    columns, new_past = shifted(x, past)
    weight = torch.cat([torch.zeros_like(weight[:, :1]), weight[:, 1:]], -1)
    return stored(convolved(columns, weight, x.shape[-1])), new_past


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def one_column_late(x: T, weight: T, past: T) -> Pair:
    """The window ends one column before the newest."""
    columns, new_past = shifted(x, past)
    late = torch.cat([torch.zeros_like(columns[:, :1]), columns[:, :-1]], -1)
    return stored(convolved(late, weight, x.shape[-1])), new_past


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def one_tap_for_all_channels(x: T, weight: T, past: T) -> Pair:
    """The first channel's taps serve all of them."""
    columns, new_past = shifted(x, past)
    return stored(convolved(columns, weight[:1].expand_as(weight), x.shape[-1])), new_past


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def silu_left_out(x: T, weight: T, past: T) -> Pair:
    """The activation is left out."""
    columns, new_past = shifted(x, past)
    return convolved(columns, weight, x.shape[-1]).bfloat16(), new_past


# -- history


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def history_not_read(x: T, weight: T, past: T) -> Pair:
    """Every call starts from zeros."""
    out, _ = conv4_ring_silu_torch(x, weight, torch.zeros_like(past), profile="two_step")
    return out, shifted(x, past)[1]


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def history_not_carried(x: T, weight: T, past: T) -> Pair:
    """The history goes out as it came in."""
    out, _ = conv4_ring_silu_torch(x, weight, past, profile="two_step")
    return out, past.clone()


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def history_of_this_call_alone(x: T, weight: T, past: T) -> Pair:
    """Columns before this call are forgotten: zeros stand for them."""
    out, _ = conv4_ring_silu_torch(x, weight, past, profile="two_step")
    return out, shifted(x, torch.zeros_like(past))[1]


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="shift")
def history_after_silu(x: T, weight: T, past: T) -> Pair:
    """Outputs are kept where inputs are meant."""
    out, _ = conv4_ring_silu_torch(x, weight, past, profile="two_step")
    return out, torch.cat([past, out], -1)[:, -past.shape[-1] :].clone()


@red("conv4_ring_silu", profile=BOTH, gate="exact", layout="ring")
def slot_one_further(x: T, weight: T, past: T, slot: T, *, profile: str) -> Pair:
    """The slot is taken for that of the newest column."""
    return conv4_ring_silu_torch(x, weight, past, slot + 1, profile=profile)


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="ring")
def ring_read_from_its_start(x: T, weight: T, past: T, slot: T) -> Pair:
    """Place 0 is taken for the oldest, the write goes to the slot."""
    columns = torch.cat([past, x], -1)
    right = torch.cat([in_order(past, slot), x], -1)
    new_past = kept_columns(right, past.shape[-1], slot, x.shape[-1])
    return stored(convolved(columns, weight, x.shape[-1])), new_past


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="ring")
def ring_turned_to_its_start(x: T, weight: T, past: T, slot: T) -> Pair:
    """The history goes out in order of time, though the caller's slot moves on."""
    out, _ = conv4_ring_silu_torch(x, weight, past, slot, profile="two_step")
    columns = torch.cat([in_order(past, slot), x], -1)
    return out, columns[:, -past.shape[-1] :].clone()


@red("conv4_ring_silu", profile="two_step", gate="exact", layout="ring")
def slot_does_not_move(x: T, weight: T, past: T, slot: T) -> Pair:
    """Every column of the call is written to the same place: only the last one stays."""
    out, _ = conv4_ring_silu_torch(x, weight, past, slot, profile="two_step")
    new_past = past.clone()
    new_past[:, int(slot)] = x[:, -1]
    return out, new_past


# -- legal variants


@green("conv4_ring_silu", profile="two_step", layout="shift")
def conv1d_in_fp32(x: T, weight: T, past: T) -> Pair:
    """torch's depthwise convolution."""
    columns, new_past = shifted(x, past)
    total = torch.nn.functional.conv1d(
        columns.float()[None], weight.float()[:, None], groups=x.shape[0]
    )[0, :, -x.shape[-1] :]
    return stored(total), new_past


@green("conv4_ring_silu", profile="once", layout="shift")
def in_float64(x: T, weight: T, past: T) -> Pair:
    """Every step is kept wider; silu through the sigmoid, the newest tap first."""
    columns, new_past = shifted(x, past)
    windows = columns.double().unfold(-1, TAPS, 1)[:, -x.shape[-1] :]
    total = (windows.flip(-1) * weight.double().flip(-1)[:, None]).sum(-1)
    return (total * torch.sigmoid(total)).float().bfloat16(), new_past


@green("conv4_ring_silu", profile="two_step", layout="ring")
def step_by_step(x: T, weight: T, past: T, slot: T) -> Pair:
    """One column at a time: written to its place, then read from the ring and the column that it replaced."""
    ring, outs = past.clone(), []
    kept = past.shape[-1]
    for t in range(x.shape[-1]):
        place = (int(slot) + t) % kept
        before = torch.stack([ring[:, (place + i) % kept] for i in range(kept)], -1)
        window = torch.cat([before, x[:, t : t + 1]], -1)
        outs.append(stored(convolved(window, weight, 1)))
        ring[:, place] = x[:, t]
    return torch.cat(outs, -1), ring
