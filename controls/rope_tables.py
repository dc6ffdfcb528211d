"""Planted rotary tables: faults that kernels have had, and legal variants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Tables = tuple["torch.Tensor", "torch.Tensor"]


def stored(cos: torch.Tensor, sin: torch.Tensor, profile: str) -> Tables:
    """Both tables in the profile's format."""
    dtype = torch.bfloat16 if profile == "once" else torch.float32
    return cos.to(dtype), sin.to(dtype)


def of_angles(angle: torch.Tensor, profile: str) -> Tables:
    """cos and sin as the contract has them, for faults that lie in the angle."""
    return stored(angle.cos(), angle.sin(), profile)


# -- plain tables: angles


@red("rope_tables", profile=("once", "float32"), gate="shapes", scheme="plain")
def positions_in_bf16(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """From 256 on, neighbouring positions are one."""
    return of_angles(positions.bfloat16().float()[:, None] * inv_freq, profile)


@red("rope_tables", profile="once", gate="shapes", scheme="plain")
def positions_in_fp16(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """Whole numbers end at 2,048, and at 65,520 there is infinity."""
    return of_angles(positions.half().float()[:, None] * inv_freq, "once")


@red("rope_tables", profile="once", gate="shapes", scheme="plain")
def angle_in_bf16(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """The product of fp32 factors is stored in the tables' format."""
    return of_angles((positions.float()[:, None] * inv_freq).bfloat16().float(), "once")


@red("rope_tables", profile=("once", "float32"), gate="shapes", scheme="plain")
def another_theta(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """The frequencies of theta^1.1 (25,119 for 10,000)."""
    return of_angles(positions.float()[:, None] * inv_freq**1.1, profile)


@red("rope_tables", profile="once", gate="shapes", scheme="plain")
def one_position_late(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """Positions are counted from 1."""
    return of_angles((positions + 1).float()[:, None] * inv_freq, "once")


@red("rope_tables", profile=("once", "float32"), gate="shapes", scheme="plain")
def short_pi(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """Whole turns are taken off the angle with 2 pi in fp32."""
    angle = positions.float()[:, None] * inv_freq
    turn = torch.tensor(2 * math.pi)
    return of_angles(angle - torch.round(angle / turn) * turn, profile)


@red("rope_tables", profile="once", gate="exact", scheme="plain")
def cos_in_place_of_sin(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """The tables are exchanged."""
    cos, sin = of_angles(positions.float()[:, None] * inv_freq, "once")
    return sin, cos


@red("rope_tables", profile="once", gate="exact", scheme="plain")
def tables_through_fp16(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """cos and sin are rounded to fp16, then to bf16."""
    angle = positions.float()[:, None] * inv_freq
    return stored(angle.cos().half(), angle.sin().half(), "once")


# -- proportional tables


@red("rope_tables", profile=("once", "float32"), gate="exact", scheme="proportional")
def still_pairs_vanish(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """The pairs that stand still get cos 0."""
    cos, sin = of_angles(positions.float()[:, None] * inv_freq, profile)
    cos[:, len(inv_freq) // 4 :] = 0
    sin[:, len(inv_freq) // 4 :] = 0
    return cos, sin


@red("rope_tables", profile="once", gate="exact", scheme="proportional")
def every_fourth_pair_turns(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """A quarter of the pairs, but not the first."""
    turns = torch.arange(len(inv_freq)) % 4 == 0
    return of_angles(positions.float()[:, None] * (inv_freq * turns), "once")


@red("rope_tables", profile="once", gate="exact", scheme="proportional")
def frequencies_of_the_quarter(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """The exponents run over the quarter that turns, not over the head: every fourth frequency is taken."""
    quarter = len(inv_freq) // 4
    angle = positions.float()[:, None] * inv_freq
    angle[:, :quarter] = angle[:, : 4 * quarter : 4]
    angle[:, quarter:] = 0
    return of_angles(angle, "once")


# -- three axes


def by_axis(positions: torch.Tensor, inv_freq: torch.Tensor, axis: torch.Tensor) -> Tables:
    """Tables in bf16, where frequency i reads positions[axis[i]]."""
    return of_angles(positions.float()[axis].T * inv_freq, "once")


@red("mrope_tables", profile="once", gate="exact", layout="interleaved")
def contiguous_sections(
    positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor
) -> Tables:
    """Time first, then height, then width, as Qwen2-VL has them."""
    starts = sections.long().cumsum(0)[:2]
    lane = torch.arange(len(inv_freq))
    return by_axis(positions, inv_freq, torch.searchsorted(starts, lane, right=True))


@red("mrope_tables", profile="once", gate="exact", layout="interleaved")
def time_alone(positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor) -> Tables:
    """Every frequency reads the first axis."""
    return by_axis(positions, inv_freq, torch.zeros(len(inv_freq), dtype=torch.long))


@red("mrope_tables", profile="once", gate="exact", layout="interleaved")
def height_for_width(
    positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor
) -> Tables:
    """The last two axes are exchanged."""
    lane = torch.arange(len(inv_freq))
    axis = (lane % 3 == 2) & (lane < 3 * sections[2].long())
    other = (lane % 3 == 1) & (lane < 3 * sections[1].long())
    return by_axis(positions, inv_freq, axis + 2 * other)


@red("mrope_tables", profile="once", gate="shapes", layout="interleaved")
def no_end_of_the_sections(
    positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor
) -> Tables:
    """The axes alternate to the last frequency; [24, 20, 20] ends at 60 of 64."""
    return by_axis(positions, inv_freq, torch.arange(len(inv_freq)) % 3)


@red("mrope_tables", profile="once", gate="exact", layout="interleaved")
def sections_not_tripled(
    positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor
) -> Tables:
    """The section's length is taken for its end."""
    lane = torch.arange(len(inv_freq))
    axis = torch.where(lane < sections[lane % 3], lane % 3, 0)
    return by_axis(positions, inv_freq, axis)


@red("mrope_tables", profile="once", gate="exact", layout="contiguous")
def alternating_axes(
    positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor
) -> Tables:
    """The axes alternate where sections follow each other."""
    return by_axis(positions, inv_freq, torch.arange(len(inv_freq)) % 3)


# -- the coordinates of patches


@red("vit_rope_tables", profile=("once", "float32"), gate="shapes")
def row_for_column(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """The coordinates are exchanged; a square grid's diagonal cannot tell."""
    return of_angles((positions.flip(-1).float()[..., None] * inv_freq).flatten(1), profile)


@red("vit_rope_tables", profile="once", gate="exact")
def one_coordinate(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """Both halves turn by the first."""
    angle = positions[:, :1].float() * inv_freq
    return of_angles(torch.cat((angle, angle), -1), "once")


@red("vit_rope_tables", profile="once", gate="exact")
def coordinates_alternate(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """Pairs 2 i and 2 i + 1 turn by frequency i, by one coordinate each."""
    angle = positions.float()[:, None] * inv_freq[:, None]
    return of_angles(angle.flatten(1), "once")


@red("vit_rope_tables", profile="once", gate="exact")
def index_of_the_patch(positions: torch.Tensor, inv_freq: torch.Tensor) -> Tables:
    """Both coordinates are read from the flat positions, token after token."""
    flat = positions.T.reshape(-1, 2)
    return of_angles((flat.float()[..., None] * inv_freq).flatten(1), "once")


# -- legal variants


@green("rope_tables", profile=("once", "float32"), scheme="plain")
def trig_in_float64(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """The angle is fp32, cos and sin are kept wider, and rounded once."""
    angle = (positions.float()[:, None] * inv_freq).double()
    return stored(angle.cos().float(), angle.sin().float(), profile)


@green("rope_tables", profile=("once", "float32"), scheme="plain")
def as_a_product_of_matrices(
    positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str
) -> Tables:
    """The outer product over an inner dim of 1."""
    return of_angles(positions.float()[:, None] @ inv_freq[None], profile)


@green("rope_tables", profile=("once", "float32"), scheme="proportional")
def frequencies_of_zero(positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str) -> Tables:
    """The pairs that stand still have frequency 0, and their cos and sin are computed."""
    turning = len(inv_freq) // 4
    padded = torch.cat((inv_freq[:turning], torch.zeros(len(inv_freq) - turning)))
    return of_angles(positions.float()[:, None] * padded, profile)


@green("mrope_tables", profile=("once", "float32"), layout="interleaved")
def chosen_after_the_trig(
    positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor, *, profile: str
) -> Tables:
    """cos and sin of all three axes, then the one that each frequency reads."""
    tables = []
    for table in of_angles(positions.float()[..., None] * inv_freq, profile):
        chosen = table[0].clone()
        for axis in (1, 2):
            lanes = slice(axis, 3 * int(sections[axis]), 3)
            chosen[:, lanes] = table[axis][:, lanes]
        tables.append(chosen)
    return tables[0], tables[1]


@green("vit_rope_tables", profile=("once", "float32"))
def looked_up_by_coordinate(
    positions: torch.Tensor, inv_freq: torch.Tensor, *, profile: str
) -> Tables:
    """One table of all coordinates, gathered for both."""
    all_of_them = torch.arange(int(positions.max()) + 1).float()[:, None] * inv_freq
    cos, sin = of_angles(all_of_them, profile)
    return cos[positions.long()].flatten(1), sin[positions.long()].flatten(1)
