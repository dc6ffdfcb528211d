"""Planted plane products: faults in planes, zero points, blocks and accumulators, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.packing import nibbles_of
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BLOCK, TOP = 128, 32_639


def planes_of(a: torch.Tensor, low: str = "signed") -> tuple[torch.Tensor, torch.Tensor]:
    """High and low plane in int64."""
    wide = a.long()
    if low == "unsigned":
        return wide >> 8, wide & 255
    wide = wide.clamp(max=TOP)
    lower = ((wide + 128) & 255) - 128
    return (wide - lower) >> 8, lower


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """(rows, k) -> (rows, blocks, 128)."""
    return x.reshape(len(x), -1, BLOCK)


def codes_of(words: torch.Tensor) -> torch.Tensor:
    """(n, blocks, 128) codes in int64."""
    return in_blocks(nibbles_of(words).long())


def totals_of(
    high: torch.Tensor, lower: torch.Tensor, q: torch.Tensor, z: torch.Tensor
) -> torch.Tensor:
    """t_b of each row, output and block: 256 sum q hi + sum q lo - z (256 sum hi + sum lo), exact."""
    high, lower = in_blocks(high), in_blocks(lower)
    both = 256 * high + lower
    sums = torch.einsum("rbk,nbk->rnb", both.double(), q.double())
    return sums.long() - z.long() * both.sum(-1)[:, None]


def summed(totals: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The fp32 sum over blocks, rounded to bf16."""
    return (totals.float() * scales.float()).sum(-1).bfloat16()


# -- planes


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def high_plane_wraps(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Codes above 32,639 are not clamped: hi = 128 is stored as -128."""
    wide = a.long()
    lower = ((wide + 128) & 255) - 128
    high = ((wide - lower) >> 8).to(torch.int8).long()
    return summed(totals_of(high, lower, codes_of(words), zeros), scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="unsigned")
def clamped_where_it_need_not(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The clamp of signed planes."""
    return summed(totals_of(*planes_of(a), codes_of(words), zeros), scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="unsigned")
def low_plane_read_as_signed(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """lo of 128 .. 255 is read as -128 .. -1."""
    high, lower = planes_of(a, "unsigned")
    return summed(totals_of(high, lower.to(torch.int8).long(), codes_of(words), zeros), scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def high_plane_by_shift(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """hi = a >> 8 beside a signed lo: 256 too little where lo is negative."""
    wide = a.long().clamp(max=TOP)
    lower = ((wide + 128) & 255) - 128
    return summed(totals_of(wide >> 8, lower, codes_of(words), zeros), scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def low_plane_saturates(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """lo = -128 is stored as -127."""
    high, lower = planes_of(a)
    return summed(totals_of(high, lower.clamp(min=-127), codes_of(words), zeros), scales)


@red("w4_gemv_planes", profile="once", gate="shapes", low="signed")
def planes_swapped(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """256 times the low plane."""
    high, lower = planes_of(a)
    return summed(totals_of(lower, high, codes_of(words), zeros), scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def low_plane_dropped(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Only the high plane."""
    high, lower = planes_of(a)
    return summed(totals_of(high, 0 * lower, codes_of(words), zeros), scales)


# -- codes and zero points


@red("w4_gemv_planes", profile="once", gate="shapes", low="signed")
def nibbles_swapped(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The high nibble of a byte comes first."""
    q = codes_of(words)
    q = q.reshape(*q.shape[:2], -1, 2).flip(-1).reshape(q.shape)
    return summed(totals_of(*planes_of(a), q, zeros), scales)


@red("w4_gemv_planes", profile=("once", "half"), gate="shapes", low="signed")
def zero_point_dropped(
    a: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    profile: str,
) -> torch.Tensor:
    """t_b = sum q a."""
    totals = totals_of(*planes_of(a), codes_of(words), 0 * zeros)
    out = (totals.float() * scales.float()).sum(-1)
    return out.bfloat16() if profile == "once" else out.half()


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def zero_point_of_the_high_plane_only(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """z 256 sum hi, without z sum lo."""
    high, lower = planes_of(a)
    totals = totals_of(high, lower, codes_of(words), 0 * zeros)
    less = zeros.long() * (256 * in_blocks(high)).sum(-1)[:, None]
    return summed(totals - less, scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def zero_point_of_15_as_minus_1(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Zero points sign-extended from four bits."""
    z = zeros.long()
    z = torch.where(z > 7, z - 16, z)
    return summed(totals_of(*planes_of(a), codes_of(words), z), scales)


# -- blocks


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def block_edge_shifted(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The last input of a block is counted to the next one."""
    high, lower = planes_of(a)
    q = nibbles_of(words).long()
    k = torch.arange(a.shape[1])
    at = ((k + 1) // BLOCK).clamp(max=scales.shape[1] - 1)
    both = (256 * high + lower).double()
    weight = (q - zeros.long()[:, at]).double() * scales.double()[:, at]
    return (both @ weight.t()).float().bfloat16()


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def scale_of_the_first_block(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Block index (tile / block) in integers with tiles of 64: always 0."""
    first = scales[:, :1].expand_as(scales)
    return summed(totals_of(*planes_of(a), codes_of(words), zeros), first)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def tail_lost(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """A loop over pairs of blocks leaves the last one of an odd number out."""
    totals = totals_of(*planes_of(a), codes_of(words), zeros)
    if totals.shape[-1] > 1 and totals.shape[-1] % 2:
        totals[..., -1] = 0
    return summed(totals, scales)


# -- accumulators


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def int16_sums_of_a_plane(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The sums of a plane wrap at 16 bits."""
    q = codes_of(words).double()

    def wrapped(plane: torch.Tensor) -> torch.Tensor:
        sums = torch.einsum("rbk,nbk->rnb", in_blocks(plane).double(), q)
        return sums.long().to(torch.int16).long()

    high, lower = planes_of(a)
    both = in_blocks(256 * high + lower).sum(-1)[:, None]
    return summed(256 * wrapped(high) + wrapped(lower) - zeros.long() * both, scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def fp16_totals(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """t_b / 256 is rounded to fp16 before its scale."""
    totals = totals_of(*planes_of(a), codes_of(words), zeros)
    held = (totals.float() / 1024.0).half().float() * 1024.0
    return (held * scales.float()).sum(-1).bfloat16()


def running_fp32(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Sums of q a over a block in fp32, one input after the other: beyond 2^24 odd sums are lost."""
    high, lower = planes_of(a)
    both, q = in_blocks(256 * high + lower).float(), codes_of(words).float()
    total = torch.zeros(len(a), q.shape[0], q.shape[1])
    for k in range(BLOCK):
        total = total + both[:, None, :, k] * q[:, :, k]
    return total.long() - zeros.long() * both.long().sum(-1)[:, None]


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def fp32_sums_of_whole_codes(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """q a summed in fp32 without planes."""
    return summed(running_fp32(a, words, scales, zeros), scales)


@red("w4_gemv_planes", profile="once", gate="exact", low="signed")
def bf16_partial_sums(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Each block's product is rounded to bf16 before it is added."""
    totals = totals_of(*planes_of(a), codes_of(words), zeros)
    return (totals.float() * scales.float()).bfloat16().float().sum(-1).bfloat16()


# -- legal variants


@green("w4_gemv_planes", profile="once")
def blocks_from_the_last(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """A running sum from the last block to the first."""
    totals = totals_of(*planes_of(a, low), codes_of(words), zeros)
    out = torch.zeros(totals.shape[:-1])
    for b in reversed(range(totals.shape[-1])):
        out = out + totals[..., b].float() * scales[:, b]
    return out.bfloat16()


@green("w4_gemv_planes", profile="once")
def fused_products(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """int32 totals that are not rounded to fp32, and fused multiply-adds."""
    totals = totals_of(*planes_of(a, low), codes_of(words), zeros)
    out = torch.zeros(totals.shape[:-1])
    for b in range(totals.shape[-1]):
        out = (out.double() + totals[..., b].double() * scales[:, b].double()).float()
    return out.bfloat16()


@green("w4_gemv_planes", profile="half")
def in_float64(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """The sum over blocks is kept wider, and given to fp32 before it is rounded."""
    totals = totals_of(*planes_of(a, low), codes_of(words), zeros)
    return (totals.double() * scales.double()).sum(-1).float().half()


@green("w4_gemv_planes", profile="once")
def two_int8_products(
    a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, low: str
) -> torch.Tensor:
    """The planes apart, in integer products, as the formula has them."""
    high, lower = planes_of(a, low)
    q = codes_of(words)
    planes = [
        torch.einsum("rbk,nbk->rnb", in_blocks(p).double(), q.double()).long()
        for p in (high, lower)
    ]
    less = zeros.long() * in_blocks(256 * high + lower).sum(-1)[:, None]
    return summed(256 * planes[0] + planes[1] - less, scales)
