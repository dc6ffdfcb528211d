"""Planted products with eight-bit weights: faults that such kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.w8_gemv import weight_of
from contract.lazy import lazy
from contract.references.w8_gemv import BLOCK

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("kept", "planes")


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One rounding of an fp32 sum."""
    return (x.float() @ weight.float().t()).to(x.dtype)


def summed(
    x: torch.Tensor, high: torch.Tensor, low: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The two planes' products, in fp32, rounded once."""
    wide = x.float()
    parts = (wide @ weight_of(16 * high.short(), scales).t(), wide @ weight_of(low, scales).t())
    return (parts[0] + parts[1]).to(x.dtype)


# -- codes


@red("w8_gemv", profile=BOTH, gate="shapes")
def codes_without_a_sign(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Bytes are read as 0 .. 255."""
    return product(weight_of(codes.view(torch.uint8), scales), x)


@red("w8_gemv", profile=BOTH, gate="shapes")
def codes_less_128(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Bytes are read as stored with 128 added."""
    return product(weight_of(codes.view(torch.uint8).short() - 128, scales), x)


@red("w8_gemv", profile=BOTH, gate="exact")
def lowest_code_clamped(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """-128 is taken for -127."""
    return product(weight_of(codes.clamp(min=-127), scales), x)


# -- planes


@red("w8_gemv", profile=BOTH, gate="shapes")
def low_plane_dropped(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The high plane alone."""
    return summed(x, codes >> 4, codes * 0, scales)


@red("w8_gemv", profile=BOTH, gate="shapes")
def low_plane_read_as_signed(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """lo of 8 .. 15 is read as -8 .. -1."""
    return summed(x, codes >> 4, ((codes & 15) ^ 8) - 8, scales)


@red("w8_gemv", profile=BOTH, gate="shapes")
def offset_of_the_low_plane_forgotten(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """lo - 8, as a symmetric four-bit code."""
    return summed(x, codes >> 4, (codes & 15) - 8, scales)


@red("w8_gemv", profile=BOTH, gate="shapes")
def high_plane_without_a_sign(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """A shift that fills with zeros."""
    return summed(x, codes.view(torch.uint8) >> 4, codes & 15, scales)


@red("w8_gemv", profile=BOTH, gate="shapes")
def high_plane_towards_zero(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """hi = q / 16 towards zero beside a lo of 0 .. 15."""
    return summed(x, torch.div(codes, 16, rounding_mode="trunc"), codes & 15, scales)


@red("w8_gemv", profile=BOTH, gate="exact")
def planes_stored_between(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Each plane's product is rounded to bf16 before the two are added."""
    return product(weight_of(codes >> 4 << 4, scales), x) + product(
        weight_of(codes & 15, scales), x
    )


# -- blocks


@red("w8_gemv", profile=BOTH, gate="exact")
def block_edge_shifted(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Input k takes the scale of block (k + 1) // 32."""
    at = ((torch.arange(x.shape[1]) + 1) // BLOCK).clamp(max=scales.shape[1] - 1)
    return product(codes.float() * scales.float()[:, at], x)


@red("w8_gemv", profile=BOTH, gate="exact")
def scale_of_the_block_before(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Scales are read one block late."""
    return product(weight_of(codes, scales.roll(1, 1)), x)


@red("w8_gemv", profile=BOTH, gate="exact")
def scale_of_the_first_block(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """One scale a row."""
    return product(weight_of(codes, scales[:, :1].expand_as(scales)), x)


@red("w8_gemv", profile=BOTH, gate="shapes")
def scale_of_the_row_before(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Every output takes its neighbour's scales."""
    return product(weight_of(codes, scales.roll(1, 0)), x)


# -- the sum


@red("w8_gemv", profile=BOTH, gate="exact")
def tail_lost(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A loop over whole tiles of 64 inputs, and at least one, leaves the last ones out."""
    weight = weight_of(codes, scales)
    weight[:, max(64, x.shape[1] // 64 * 64) - 1 :] = 0
    return product(weight, x)


@red("w8_gemv", profile=BOTH, gate="exact")
def weight_rounded(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight is stored in bf16 before the product."""
    return product(weight_of(codes, scales).bfloat16(), x)


@red("w8_gemv", profile=BOTH, gate="exact")
def bf16_partial_sums(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Two halves of the inputs, each sum rounded to bf16 before they are added."""
    weight, half = weight_of(codes, scales), x.shape[1] // 2
    return product(weight[:, :half], x[:, :half]) + product(weight[:, half:], x[:, half:])


@red("w8_gemv", profile=BOTH, gate="exact")
def fp16_accumulator(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Sums of 32 products are carried on in fp16."""
    total = torch.zeros(len(x), len(codes), dtype=torch.float16)
    weight = weight_of(codes, scales)
    for part, of in zip(x.float().split(32, 1), weight.split(32, 1), strict=True):
        total = (total.float() + part @ of.t()).half()
    return total.to(x.dtype)


@red("w8_gemv", profile=BOTH, gate="exact")
def vector_quantised(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x in int8 blocks, as ggml's own product takes it."""
    wide = x.float().unflatten(1, (-1, BLOCK))
    step = wide.abs().amax(-1, keepdim=True) / 127
    held = (wide / step).round().nan_to_num() * step
    return product(weight_of(codes, scales), held.flatten(1).to(torch.float32)).to(x.dtype)


# -- legal variants


@green("w8_gemv", profile="kept")
def one_input_after_the_other(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """A running sum over k."""
    weight = weight_of(codes, scales)
    total = torch.zeros(len(x), len(codes))
    for k in range(x.shape[1]):
        total = torch.addcmul(total, x[:, k, None].float(), weight[:, k])
    return total.to(x.dtype)


@green("w8_gemv", profile="kept")
def in_float64(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The sum is kept wider, and given to fp32 before it is rounded."""
    return (x.double() @ weight_of(codes, scales).double().t()).float().to(x.dtype)


@green("w8_gemv", profile="planes")
def high_plane_first(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The two planes' products apart, added at the end."""
    return summed(x, codes >> 4, codes & 15, scales)


@green("w8_gemv", profile="planes")
def planes_by_turns(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Both planes' terms of an input, one input after the other."""
    high, low = weight_of(codes >> 4 << 4, scales), weight_of(codes & 15, scales)
    total = torch.zeros(len(x), len(codes))
    for k in range(x.shape[1]):
        for weight in (high, low):
            total = torch.addcmul(total, x[:, k, None].float(), weight[:, k])
    return total.to(x.dtype)
