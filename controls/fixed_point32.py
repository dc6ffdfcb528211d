"""Planted conversions to FixedPoint32: other roundings, ends and flags, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import green, red
from contract.kernels.fixed_point32 import fixed_point32_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

LOW, HIGH = -(2.0**31), 2.0**31 - 1
CHECKED = ("assert_fits",)
PLAIN = ("saturate",)


def scaled_by(x: torch.Tensor, frac: str | int) -> torch.Tensor:
    """x * 2^frac in fp64, exact."""
    return x.double() * 2.0 ** int(frac)


def saturated(whole: torch.Tensor) -> torch.Tensor:
    """Whole numbers as codes."""
    return whole.clamp(LOW, HIGH).to(torch.int32)


# -- codes


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def truncated(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """The conversion cuts the fraction off."""
    return saturated(scaled_by(x, frac).trunc())


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def half_away(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """Halves are rounded away from zero."""
    scaled = scaled_by(x, frac)
    return saturated((scaled.abs() + 0.5).floor().copysign(scaled))


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def floor_of_x_plus_half(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """A half is added and the rest shifted out: halves are rounded up."""
    return saturated((scaled_by(x, frac) + 0.5).floor())


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def wraps(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """The low 32 bits are kept."""
    low = torch.remainder(scaled_by(x, frac).round(), 2.0**32)
    return torch.where(low > HIGH, low - 2.0**32, low).to(torch.int32)


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def clamped_in_fp32(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """fp32 rounds the largest code to 2^31, which is one too far: its low 32 bits are the lowest code."""
    whole = (x * 2.0 ** int(frac)).round().clamp(LOW, HIGH)
    return whole.to(torch.int64).to(torch.int32)


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def symmetric_ends(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """-2^31 + 1 is the lowest code."""
    return scaled_by(x, frac).round().clamp(-HIGH, HIGH).to(torch.int32)


@red("fixed_point32", profile="fx32", gate="shapes", overflow=PLAIN)
def one_fraction_bit_less(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """frac - 1."""
    return saturated(scaled_by(x, int(frac) - 1).round())


@red("fixed_point32", profile="fx32", gate="exact", overflow=PLAIN)
def twice_rounded(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """To one fraction bit more first, and from there to the code."""
    return saturated(((scaled_by(x, frac) * 2.0).round() / 2.0).round())


# -- the flag


@red("fixed_point32", profile="fx32", gate="exact", overflow=CHECKED)
def always_fits(x: torch.Tensor, *, frac: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The flag is 1 whatever happened."""
    codes, fits = fixed_point32_torch(x, frac=frac, overflow="assert_fits")
    return codes, torch.ones_like(fits)


@red("fixed_point32", profile="fx32", gate="exact", overflow=CHECKED)
def fits_of_the_whole_tensor(x: torch.Tensor, *, frac: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One row that does not fit clears the flag of all."""
    codes, fits = fixed_point32_torch(x, frac=frac, overflow="assert_fits")
    return codes, fits.amin().expand_as(fits).clone()


@red("fixed_point32", profile="fx32", gate="exact", overflow=CHECKED)
def limit_included(x: torch.Tensor, *, frac: str) -> tuple[torch.Tensor, torch.Tensor]:
    """|x| * 2^frac <= 2^31: 2^31 itself passes for a code."""
    scaled = scaled_by(x, frac)
    return saturated(scaled.round()), (scaled.abs() <= -LOW).all(-1).to(torch.uint8)


@red("fixed_point32", profile="fx32", gate="exact", overflow=CHECKED)
def lowest_refused(x: torch.Tensor, *, frac: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The code -2^31 is taken for a saturated one."""
    codes, fits = fixed_point32_torch(x, frac=frac, overflow="assert_fits")
    return codes, fits * (codes != int(LOW)).all(-1).to(torch.uint8)


# -- legal variants


@green("fixed_point32", profile="fx32", overflow=PLAIN)
def in_chunks(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """One row, and 100 of its columns, at a time."""
    codes = torch.empty(x.shape, dtype=torch.int32)
    for row, target in zip(x, codes, strict=True):
        parts = [saturated(scaled_by(p, frac).round()) for p in row.split(100)]
        target.copy_(torch.cat(parts))
    return codes


@green("fixed_point32", profile="fx32", overflow=PLAIN)
def in_fp32(x: torch.Tensor, *, frac: str) -> torch.Tensor:
    """The product with 2^frac is exact in fp32 as well; only the clamp needs the wider format."""
    return saturated((x * 2.0 ** int(frac)).round().double())


@green("fixed_point32", profile="fx32", overflow=CHECKED)
def through_numpy(x: torch.Tensor, *, frac: str) -> tuple[torch.Tensor, torch.Tensor]:
    """rint, and a comparison with the clamped values."""
    whole = np.rint(np.ldexp(x.numpy().astype(np.float64), int(frac)))
    codes = np.clip(whole, LOW, HIGH)
    fits = (codes == whole).all(-1).astype(np.uint8)
    return torch.from_numpy(codes.astype(np.int32)), torch.from_numpy(fits)
