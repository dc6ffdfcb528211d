"""Planted normalisations of pixels: other scales, orders and roundings, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.pixels import pixels_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def stored(y: Tensor, profile: str) -> Tensor:
    """In the format of the profile's result."""
    return y if profile in ("float32", "folded") else y.bfloat16()


@red("pixels", profile=("float32", "once"), gate="shapes")
def divided_by_256(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """A shift by eight bits."""
    return stored((codes.float() / 256.0 - mean) / std, profile)


@red("pixels", profile=("float32", "once"), gate="shapes")
def not_rescaled(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """Mean and std meet values of 0 .. 255."""
    return stored((codes.float() - mean) / std, profile)


@red("pixels", profile=("float32", "once"), gate="shapes")
def scaled_before_the_mean(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """p / 255 / std - mean."""
    return stored(codes.float() / 255.0 / std - mean, profile)


@red("pixels", profile=("float32", "once"), gate="shapes")
def channels_reversed(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """Blue pixels meet the red mean and std."""
    return pixels_torch(codes, mean.flip(0), std.flip(0), profile=profile)


@red("pixels", profile=("float32", "once"), gate="shapes")
def codes_signed(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """Codes from 128 on are read as negative numbers."""
    return stored((codes.view(torch.int8).float() / 255.0 - mean) / std, profile)


@red("pixels", profile="float32", gate="exact")
def multiplied_by_the_reciprocal(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """p times the fp32 number next to 1 / 255."""
    return (codes.float() * torch.tensor(1.0 / 255.0) - mean) / std


@red("pixels", profile="float32", gate="exact")
def multiplied_by_one_over_std(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The last division is a product with a reciprocal."""
    return (codes.float() / 255.0 - mean) * (1.0 / std)


@red("pixels", profile="once", gate="exact")
def each_step_in_bf16(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The scaled and the centred pixel are rounded."""
    return pixels_torch(codes, mean, std, profile="each_step")


@red("pixels", profile="each_step", gate="exact")
def rounded_once(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """fp32 up to the end."""
    return pixels_torch(codes, mean, std, profile="once")


@red("pixels", profile="once", gate="exact")
def mean_in_bf16(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Mean and std are cast to the result's format before they are used."""
    narrow = (m.bfloat16().float() for m in (mean, std))
    return pixels_torch(codes, *narrow, profile="once")


@green("pixels", profile="float32")
def product_in_float64(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """p times the fp64 number next to 1 / 255, rounded to fp32: the quotient at every code."""
    return ((codes.double() * (1.0 / 255.0)).float() - mean) / std


@green("pixels", profile="once")
def folded(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(p - 255 mean) / (255 std)."""
    return ((codes.float() - mean * 255.0) / (std * 255.0)).bfloat16()


@green("pixels", profile=("once", "each_step"))
def by_the_reciprocal(codes: Tensor, mean: Tensor, std: Tensor, *, profile: str) -> Tensor:
    """p times the fp32 number next to 1 / 255."""
    p = codes.float() * torch.tensor(1.0 / 255.0)
    if profile == "once":
        return ((p - mean) / std).bfloat16()
    return ((p.bfloat16().float() - mean).bfloat16().float() / std).bfloat16()


@green("pixels", profile="folded")
def channel_by_channel(codes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """One channel after the other."""
    parts = [
        (codes[..., c].float() - m * 255.0) / (s * 255.0)
        for c, (m, s) in enumerate(zip(mean, std, strict=True))
    ]
    return torch.stack(parts, -1)
