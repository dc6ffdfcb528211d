"""Planted conversions: the roundings, specials and overflow policies that narrow formats have had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from contract import green, red
from contract.formats import FORMATS
from contract.kernels.cast import cast_torch, to_odd_fp32, torch_type
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

# The upper half of an fp32 word is a bf16 word.
UPPER_HALF = -0x10000


def as_bf16(word: torch.Tensor) -> torch.Tensor:
    """The upper halves of fp32 words."""
    return (word >> 16).to(torch.int16).view(torch.bfloat16)


# -- rounding


@red("cast", profile="inf", gate="exact", source="fp64", to=("bf16", "fp16", "e5m2"))
@red("cast", profile="nan", gate="exact", source="fp64", to="e4m3fnuz")
@red("cast", profile="saturate", gate="exact", source="fp64", to="e4m3fn")
def through_fp32(x: torch.Tensor, *, to: str) -> torch.Tensor:
    """x.to(dtype) from fp64: torch rounds to fp32 on the way, and what lies beside a halfway point becomes a tie."""
    return x.to(torch_type(to))


@red("cast", profile="nan", gate="exact", source="fp32", to="e4m3fn")
@red("cast", profile="inf", gate="exact", source="fp32", to="e5m2")
def through_fp16(x: torch.Tensor, *, to: str, profile: str) -> torch.Tensor:
    """fp32 is rounded to fp16 on the way to 8 bits."""
    return cast_torch(x.half().float(), to=to, source="fp32", profile=profile)


@red("cast", profile="inf", gate="exact", source="fp32", to="bf16")
def truncated(x: torch.Tensor) -> torch.Tensor:
    """The low half of the word is cut off."""
    return torch.where(x.isnan(), x.bfloat16(), as_bf16(x.view(torch.int32)))


@red("cast", profile="inf", gate="exact", source="fp32", to="bf16")
def ties_away(x: torch.Tensor) -> torch.Tensor:
    """Half a step is added to the word and the low half is cut off."""
    return torch.where(x.isnan(), x.bfloat16(), as_bf16(x.view(torch.int32) + 0x8000))


@red("cast", profile="saturate", gate="exact", source="fp32", to="e4m3fn")
def ties_away_in_e4m3(x: torch.Tensor) -> torch.Tensor:
    """floor(m + 1/2) of the magnitude in units of its last place."""
    place = torch.exp2(torch.frexp(x).exponent.clamp_min(-5) - 4.0)
    whole = torch.where(x.isfinite(), (x.abs() / place + 0.5).floor() * place, x.abs())
    return whole.clamp(max=448.0).copysign(x).to(torch.float8_e4m3fn)


# -- specials


@red("cast", profile="inf", gate="exact", source="fp32", to="bf16")
def nan_to_infinity(x: torch.Tensor) -> torch.Tensor:
    """To nearest even on the word, without a test for NaN: one with a payload in the low half alone is an infinity."""
    word = x.view(torch.int32)
    return as_bf16(word + 0x7FFF + (word >> 16 & 1))


@red("cast", profile="inf", gate="exact", source="fp64", to="bf16")
def nan_to_infinity_in_the_high_word(x: torch.Tensor) -> torch.Tensor:
    """NaN is looked for in the high word of an fp64 value, and its payload lies in the low one."""
    quiet = torch.where((x.view(torch.int64) >> 32 & 0x000FFFFF) == 0, torch.inf, torch.nan)
    return torch.where(x.isnan(), quiet, to_odd_fp32(x)).bfloat16()


@red("cast", profile="inf", gate="exact", source="fp32", to=("bf16", "fp16", "e5m2"))
@red("cast", profile="nan", gate="exact", source="fp32", to="e4m3fn")
def subnormals_flushed(x: torch.Tensor, *, to: str, profile: str) -> torch.Tensor:
    """Results below the smallest normal value are zeros of their sign."""
    near = cast_torch(x, to=to, source="fp32", profile=profile).float()
    return torch.where(near.abs() < FORMATS[to].tiny, near * 0.0, near).to(torch_type(to))


@red("cast", profile="inf", gate="exact", source="fp32", to=("bf16", "fp16"))
@red("cast", profile="nan", gate="exact", source="fp32", to="e4m3fn")
def zero_sign_lost(x: torch.Tensor, *, to: str, profile: str) -> torch.Tensor:
    """-0 + 0 is +0."""
    return cast_torch(x + 0.0, to=to, source="fp32", profile=profile)


@red("cast", profile=("nan", "saturate"), gate="exact", source="fp32", to="e4m3fnuz")
def zero_sign_kept(x: torch.Tensor, *, profile: str) -> torch.Tensor:
    """-0 keeps its sign bit: in e4m3fnuz those bits are NaN."""
    codes = cast_torch(x, to="e4m3fnuz", source="fp32", profile=profile).view(torch.uint8)
    negative = (codes == 0) & torch.signbit(x)
    return (codes + negative.to(torch.uint8) * 0x80).view(torch.float8_e4m3fnuz)


# -- overflow


def swapped(name: str, policy: str, profile: str, to: str | tuple[str, ...]) -> Any:
    """A conversion under the policy of another profile."""

    def call(x: torch.Tensor, *, to: str) -> torch.Tensor:
        return cast_torch(x, to=to, source="fp32", profile=policy)

    return red("cast", profile=profile, gate="exact", name=name, source="fp32", to=to)(call)


swapped("saturates", "saturate", "nan", ("e4m3fn", "e4m3fnuz"))
swapped("saturates", "saturate", "inf", ("fp16", "e5m2"))
swapped("overflow_to_nan", "nan", "saturate", ("e4m3fn", "e4m3fnuz"))
swapped("overflow_to_infinity", "inf", "saturate", ("fp16", "e5m2"))


@red("cast", profile="saturate", gate="exact", source="fp32", to="fp16")
def infinity_kept(x: torch.Tensor) -> torch.Tensor:
    """Finite values saturate, an infinity stays one."""
    return torch.where(x.isinf(), x, x.clamp(-65504.0, 65504.0)).half()


@red("cast", profile="nan", gate="exact", source="fp32", to="e4m3fn")
def infinity_saturates(x: torch.Tensor) -> torch.Tensor:
    """Finite values beyond the range give NaN, an infinity the largest value."""
    near = cast_torch(x, to="e4m3fn", source="fp32", profile="nan").float()
    return torch.where(x.isinf(), x.clamp(-448.0, 448.0), near).to(torch.float8_e4m3fn)


@red("cast", profile="saturate", gate="exact", source="fp32", to=("fp16", "e4m3fn", "e4m3fnuz"))
def clamp_eats_nan(x: torch.Tensor, *, to: str) -> torch.Tensor:
    """fmin(fmax(x, -max), max): NaN becomes -max."""
    limit = torch.tensor(FORMATS[to].max)
    return torch.fmin(torch.fmax(x, -limit), limit).to(torch_type(to))


@red("cast", profile="saturate", gate="exact", source="fp32", to="e4m3fn")
def saturates_early(x: torch.Tensor) -> torch.Tensor:
    """The exponent alone is looked at: everything from 256 on is 448."""
    near = x.clamp(-448.0, 448.0)
    return torch.where(x.abs() >= 256.0, near.sign() * 448.0, near).to(torch.float8_e4m3fn)


@red("cast", profile="nan", gate="exact", source="fp32", to="e4m3fn")
def nan_from_halfway(x: torch.Tensor) -> torch.Tensor:
    """464, halfway to the step that is not there, is taken for an overflow; it rounds to 448."""
    wide = torch.where(x.abs() >= 464.0, torch.full_like(x, torch.nan), x)
    return wide.to(torch.float8_e4m3fn)


# -- the other flavour's bytes


@red("cast", profile="saturate", gate="shapes", source="fp32", to="e4m3fnuz")
def bytes_of_e4m3fn(x: torch.Tensor) -> torch.Tensor:
    """e4m3fn bytes under the name e4m3fnuz: half the value, and -0 is NaN."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.float8_e4m3fnuz)


@red("cast", profile="saturate", gate="shapes", source="fp32", to="e4m3fn")
def bytes_of_e4m3fnuz(x: torch.Tensor) -> torch.Tensor:
    """e4m3fnuz bytes under the name e4m3fn: twice the value."""
    return x.clamp(-240.0, 240.0).to(torch.float8_e4m3fnuz).view(torch.float8_e4m3fn)


# -- legal variants


@green("cast", profile="inf", source="fp32", to="bf16")
def nearest_even_on_the_word(x: torch.Tensor) -> torch.Tensor:
    """Half a step less one, and the last kept bit, are added; a NaN keeps its upper half and is made quiet."""
    word = x.view(torch.int32)
    rounded = torch.where(x.isnan(), word | 0x400000, word + 0x7FFF + (word >> 16 & 1))
    return as_bf16(rounded & UPPER_HALF)


@green("cast", profile="inf", source=("fp32", "fp64"), to="fp16")
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    """NumPy converts fp32 and fp64 to fp16 in one rounding."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(x.numpy().astype(np.float16))


@green("cast", profile="saturate", source=("fp32", "fp64"), to=("e4m3fn", "e4m3fnuz"))
def from_a_wider_format(x: torch.Tensor, *, to: str) -> torch.Tensor:
    """Clamped in fp64, rounded to odd in fp32, then to nearest: one rounding in effect."""
    limit = FORMATS[to].max
    return to_odd_fp32(x.double().clamp(-limit, limit)).to(torch_type(to))


@green("cast", profile="nan", source="fp32", to=("e4m3fn", "e4m3fnuz"))
def in_chunks_of_100(x: torch.Tensor, *, to: str) -> torch.Tensor:
    """100 columns at a time."""
    parts = [cast_torch(p, to=to, source="fp32", profile="nan") for p in x.split(100, dim=-1)]
    return torch.cat([p.view(torch.uint8) for p in parts], -1).view(torch_type(to))
