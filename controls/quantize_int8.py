"""Planted int8 quantisers: other ties, ends, scales and granularities, and legal variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Result = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("tensor", "channel")


def scale_of(x: torch.Tensor, granularity: str, codes: float = 127.0) -> torch.Tensor:
    """max|x| / codes, or 1 where all values are zero."""
    largest = x.abs().amax() if granularity == "tensor" else x.abs().amax(-1)
    return torch.where(largest > 0, largest / codes, 1.0)


def over(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x / s, one scale for the tensor or one for each row."""
    return x / (scale[:, None] if scale.ndim else scale)


def codes_of(
    quotient: torch.Tensor, rounding: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> torch.Tensor:
    """Rounded, half to even unless stated, and clamped to -127 .. 127; 0 / 0, where s underflows, is 0."""
    whole = quotient.round() if rounding is None else rounding(quotient)
    return whole.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


# -- rounding


@red("quantize_int8", profile="divide", gate="exact", granularity=BOTH)
def half_away(x: torch.Tensor, *, granularity: str) -> Result:
    """Halves are rounded away from zero, as C's roundf does."""
    scale = scale_of(x, granularity)
    return codes_of(over(x, scale), lambda q: (q.abs() + 0.5).floor().copysign(q)), scale


@red("quantize_int8", profile="divide", gate="exact", granularity=BOTH)
def floor_of_x_plus_half(x: torch.Tensor, *, granularity: str) -> Result:
    """floor(x + 0.5): halves are rounded up."""
    scale = scale_of(x, granularity)
    return codes_of(over(x, scale), lambda q: (q + 0.5).floor()), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def truncated(x: torch.Tensor, *, granularity: str) -> Result:
    """The store's conversion cuts the fraction off."""
    scale = scale_of(x, granularity)
    return codes_of(over(x, scale), torch.trunc), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def quotient_in_bf16(x: torch.Tensor, *, granularity: str) -> Result:
    """x / s is rounded to bf16 before it is rounded to a code."""
    scale = scale_of(x, granularity)
    return codes_of(over(x, scale).bfloat16().float()), scale


# -- the ends of the range


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def both_ends_of_the_type(x: torch.Tensor, *, granularity: str) -> Result:
    """Negative values are spread to -128, positive ones to 127."""
    scale = scale_of(x, granularity)
    wider = over(x, scale) * torch.where(x < 0, 128.0 / 127.0, 1.0)
    return wider.round().clamp(-128.0, 127.0).nan_to_num(0.0).to(torch.int8), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def full_range(x: torch.Tensor, *, granularity: str) -> Result:
    """s = max / 127.5 and codes from -128: the other symmetric scheme."""
    scale = scale_of(x, granularity, 127.5)
    return over(x, scale).round().clamp(-128.0, 127.0).to(torch.int8), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def scale_of_128(x: torch.Tensor, *, granularity: str) -> Result:
    """s = max / 128."""
    scale = scale_of(x, granularity, 128.0)
    return codes_of(over(x, scale)), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def wraps(x: torch.Tensor, *, granularity: str) -> Result:
    """s = max / 128 without a clamp: the largest value is 128, which is stored as -128."""
    scale = scale_of(x, granularity, 128.0)
    return over(x, scale).round().to(torch.int32).to(torch.int8), scale


@red("quantize_int8", profile="divide", gate="exact", granularity=BOTH)
def clamped_before_scaling(x: torch.Tensor, *, granularity: str) -> Result:
    """x, not x / s, is clamped to -127 .. 127."""
    scale = scale_of(x, granularity)
    return codes_of(over(x.clamp(-127.0, 127.0), scale)), scale


# -- the scale


@red("quantize_int8", profile="divide", gate="shapes", granularity=BOTH)
def sign_of_the_largest(x: torch.Tensor, *, granularity: str) -> Result:
    """The largest value, not the largest magnitude."""
    largest = x.amax() if granularity == "tensor" else x.amax(-1)
    scale = torch.where(largest > 0, largest / 127.0, 1.0)
    return codes_of(over(x, scale)), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity="channel")
def one_scale_for_all(x: torch.Tensor) -> Result:
    """The tensor's scale where each channel has its own."""
    scale = scale_of(x, "tensor").repeat(x.shape[0])
    return codes_of(over(x, scale)), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity="tensor")
def a_scale_for_each_row(x: torch.Tensor) -> Result:
    """Codes by the row's scale where the tensor has one."""
    return codes_of(over(x, scale_of(x, "channel"))), scale_of(x, "tensor")


@red("quantize_int8", profile="divide", gate="exact", granularity=BOTH)
def zeros_divided_by_zero(x: torch.Tensor, *, granularity: str) -> Result:
    """s = 0 where all is zero: 0 / 0 is NaN, which fmin turns into 127."""
    largest = x.abs().amax() if granularity == "tensor" else x.abs().amax(-1)
    limit = torch.tensor(127.0)
    quotient = torch.fmax(torch.fmin(over(x, largest / 127.0), limit), -limit)
    return codes_of(quotient), largest / 127.0


@red("quantize_int8", profile="divide", gate="exact", granularity=BOTH)
def tiny_scale_for_zeros(x: torch.Tensor, *, granularity: str) -> Result:
    """s = max(max|x|, 1e-10) / 127: zeros get another scale than 1."""
    largest = x.abs().amax() if granularity == "tensor" else x.abs().amax(-1)
    scale = largest.clamp(min=1e-10) / 127.0
    return codes_of(over(x, scale)), scale


@red("quantize_int8", profile="divide", gate="stress", granularity="channel")
def reciprocal_of_the_scale(x: torch.Tensor, *, granularity: str) -> Result:
    """max * (1 / 127) and x * (1 / s) where divisions are named."""
    largest = x.abs().amax(-1)
    scale = torch.where(largest > 0, largest * (1.0 / 127.0), 1.0)
    return codes_of(x * (1.0 / scale)[:, None]), scale


@red("quantize_int8", profile="divide", gate="shapes", granularity="tensor")
def scale_in_fp16(x: torch.Tensor) -> Result:
    """The stored scale is rounded to fp16."""
    scale = scale_of(x, "tensor").half().float()
    return codes_of(over(x, scale)), scale


# -- legal variants


@green("quantize_int8", profile="divide", granularity=BOTH)
def divided_in_float64(x: torch.Tensor, *, granularity: str) -> Result:
    """The quotient is kept wider."""
    scale = scale_of(x, granularity)
    return codes_of(over(x.double(), scale.double())), scale


@green("quantize_int8", profile="reciprocal", granularity=BOTH)
def multiplied_in_float64(x: torch.Tensor, *, granularity: str) -> Result:
    """Reciprocal and product are kept wider."""
    largest = x.abs().amax() if granularity == "tensor" else x.abs().amax(-1)
    scale = torch.where(largest > 0, largest * (1.0 / 127.0), 1.0)
    wide = scale.double() if granularity == "tensor" else scale.double()[:, None]
    return codes_of(x.double() * (1.0 / wide)), scale


@green("quantize_int8", profile="divide", granularity=BOTH)
def in_chunks(x: torch.Tensor, *, granularity: str) -> Result:
    """Maxima and codes of 96 columns at a time."""
    parts = x.split(96, dim=-1)
    largest = torch.stack([p.abs().amax(-1) for p in parts]).amax(0)
    largest = largest.amax() if granularity == "tensor" else largest
    scale = torch.where(largest > 0, largest / 127.0, 1.0)
    return torch.cat([codes_of(over(p, scale)) for p in parts], -1), scale


@green("quantize_int8", profile="divide", granularity=BOTH)
def through_numpy(x: torch.Tensor, *, granularity: str) -> Result:
    """rint of NumPy's quotient."""
    a = x.numpy()
    largest = np.abs(a).max(None if granularity == "tensor" else -1, keepdims=True)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    with np.errstate(all="ignore"):
        codes = np.nan_to_num(np.clip(np.rint(a / scale), -127, 127)).astype(np.int8)
    flat = torch.from_numpy(scale.reshape(-1))
    return torch.from_numpy(codes), flat[0] if granularity == "tensor" else flat
