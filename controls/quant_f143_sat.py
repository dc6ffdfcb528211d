"""Planted saturating fp8 quantisers: overflow, format, rounding, scale and count, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Result = tuple["torch.Tensor", "torch.Tensor"]
KERNEL, PROFILE = "quant_f143_sat", "saturate"


def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    """x 2^-k, exact."""
    return x.float() * float(2.0**-k)


def codes(values: torch.Tensor) -> torch.Tensor:
    """The right codes."""
    return values.clamp(-240.0, 240.0).to(torch.float8_e4m3fnuz)


def clipped(values: torch.Tensor, limit: float = 248.0) -> torch.Tensor:
    """The right count, but for another limit."""
    return (values.abs() >= limit).sum(-1, dtype=torch.int32)


def on_the_grid(values: torch.Tensor, mode: str) -> torch.Tensor:
    """Magnitudes moved onto the codes' grid by another rule than nearest even."""
    size = values.abs().double()
    _, exponent = torch.frexp(size.clamp(2.0**-7, 240.0))
    step = torch.ldexp(torch.ones_like(size), exponent - 4)
    whole = torch.floor(size / step + (0.5 if mode == "away" else 0.0)) * step
    return torch.where(values.isnan(), values, whole.float().copysign(values))


# -- overflow and specials


@red(KERNEL, profile=PROFILE, gate="exact")
def nan_at_overflow(x: torch.Tensor, *, k: float) -> Result:
    """torch's and ml_dtypes' own conversion: 248 and beyond is NaN."""
    values = scaled(x, k)
    return values.to(torch.float8_e4m3fnuz), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def nan_for_infinity(x: torch.Tensor, *, k: float) -> Result:
    """Finite values saturate, infinities become NaN."""
    values = scaled(x, k)
    return codes(torch.where(values.isinf(), torch.nan, values)), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def nan_clamped(x: torch.Tensor, *, k: float) -> Result:
    """fmin and fmax take the other operand: a NaN becomes 240."""
    values = scaled(x, k)
    return codes(values.nan_to_num(nan=240.0)), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def minus_zero_gets_the_code_of_nan(x: torch.Tensor, *, k: float) -> Result:
    """The sign bit is stored whatever the magnitude."""
    values = scaled(x, k)
    bits = codes(values.abs()).view(torch.uint8)
    sign = torch.where(values.signbit() & ~values.isnan(), 128, 0).to(torch.uint8)
    return (bits | sign).view(torch.float8_e4m3fnuz), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def early_saturation(x: torch.Tensor, *, k: float) -> Result:
    """Saturation is tested on the exponent alone: from 128 on all is 240."""
    values = scaled(x, k)
    early = torch.where(
        values.abs() >= 128.0, torch.full_like(values, 240.0).copysign(values), values
    )
    return codes(torch.where(values.isnan(), values, early)), clipped(values)


# -- the format


@red(KERNEL, profile=PROFILE, gate="exact")
def codes_of_e4m3fn(x: torch.Tensor, *, k: float) -> Result:
    """The other fp8's bytes."""
    values = scaled(x, k)
    bytes_ = values.clamp(-240.0, 240.0).to(torch.float8_e4m3fn).view(torch.uint8)
    return bytes_.view(torch.float8_e4m3fnuz), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def subnormals_flushed(x: torch.Tensor, *, k: float) -> Result:
    """What lies below the smallest normal code, 2^-7, is zero."""
    values = scaled(x, k)
    kept = torch.where(values.abs() < 2.0**-7, torch.zeros_like(values), values)
    return codes(kept), clipped(values)


# -- rounding


@red(KERNEL, profile=PROFILE, gate="exact")
def half_away(x: torch.Tensor, *, k: float) -> Result:
    """Ties go away from zero."""
    values = scaled(x, k)
    return codes(on_the_grid(values, "away")), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def truncated(x: torch.Tensor, *, k: float) -> Result:
    """The bits below the code's are cut."""
    values = scaled(x, k)
    return codes(on_the_grid(values, "down")), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact", source="fp32")
def through_fp16(x: torch.Tensor, *, k: float) -> Result:
    """Rounded twice: what lies just beside a tie becomes one."""
    values = scaled(x, k)
    return codes(values.half().float()), clipped(values)


# -- the scale


@red(KERNEL, profile=PROFILE, gate="exact")
def scale_exponent_off_by_one(x: torch.Tensor, *, k: float) -> Result:
    """x 2^-(k + 1)."""
    values = scaled(x, k + 1)
    return codes(values), clipped(values)


@red(KERNEL, profile=PROFILE, gate="exact")
def scaled_the_other_way(x: torch.Tensor, *, k: float) -> Result:
    """x 2^k."""
    values = scaled(x, -k)
    return codes(values), clipped(values)


# -- the count


@red(KERNEL, profile=PROFILE, gate="exact")
def counted_beyond_240(x: torch.Tensor, *, k: float) -> Result:
    """What still rounds to 240 is counted, too."""
    values = scaled(x, k)
    return codes(values), (values.abs() > 240.0).sum(-1, dtype=torch.int32)


@red(KERNEL, profile=PROFILE, gate="exact")
def tie_not_counted(x: torch.Tensor, *, k: float) -> Result:
    """248 rounds to the even side, beyond the range."""
    values = scaled(x, k)
    return codes(values), (values.abs() > 248.0).sum(-1, dtype=torch.int32)


@red(KERNEL, profile=PROFILE, gate="exact")
def nan_counted(x: torch.Tensor, *, k: float) -> Result:
    """not (|v| < 248) is true of a NaN."""
    values = scaled(x, k)
    return codes(values), (~(values.abs() < 248.0)).sum(-1, dtype=torch.int32)


@red(KERNEL, profile=PROFILE, gate="exact")
def counted_before_scaling(x: torch.Tensor, *, k: float) -> Result:
    """|x|, not |x 2^-k|, is compared."""
    return codes(scaled(x, k)), clipped(x.float())


@red(KERNEL, profile=PROFILE, gate="exact")
def negative_ones_not_counted(x: torch.Tensor, *, k: float) -> Result:
    """Only the upper end is counted."""
    values = scaled(x, k)
    return codes(values), (values >= 248.0).sum(-1, dtype=torch.int32)


@red(KERNEL, profile=PROFILE, gate="exact")
def tail_not_counted(x: torch.Tensor, *, k: float) -> Result:
    """Columns beyond a multiple of 8 are converted and not counted."""
    values = scaled(x, k)
    return codes(values), clipped(values[:, : x.shape[-1] // 8 * 8])


# -- legal variants


@green(KERNEL, profile=PROFILE)
def in_float64(x: torch.Tensor, *, k: float) -> Result:
    """Scaled in float64, which moves no bit of what is near a code."""
    values = (x.double() * 2.0**-k).float()
    return codes(values), clipped(values)


@green(KERNEL, profile=PROFILE)
def in_pieces(x: torch.Tensor, *, k: float) -> Result:
    """Codes and counts of 100 columns at a time."""
    parts = [scaled(p, k) for p in x.split(100, -1)]
    counts = torch.stack([clipped(p) for p in parts]).sum(0, dtype=torch.int32)
    return torch.cat([codes(p).view(torch.uint8) for p in parts], -1).view(
        torch.float8_e4m3fnuz
    ), counts
