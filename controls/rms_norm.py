"""Planted RMS norms: faults that kernels have had, and legal variants."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.clients import torch_norms, transformers_norms
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def inverse_rms(wide: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + eps) of each row."""
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def gained(wide: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One rounding at the end."""
    return (wide * inverse * weight.float()).to(weight.dtype)


# -- the statistics


@red("rms_norm", profile="once", gate="stress", gain="w")
def eps_left_out(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2)): rows of small values grow to 1, a row of zeros is NaN."""
    return gained(x.float(), inverse_rms(x.float(), 0.0), weight)


@red("rms_norm", profile="once", gate="stress", gain="w")
def eps_outside_the_root(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """1 / (sqrt(mean(x^2)) + eps)."""
    root = x.float().square().mean(-1, keepdim=True).sqrt()
    return gained(x.float(), 1.0 / (root + eps), weight)


@red("rms_norm", profile=("once", "two_step"), gate="exact", gain="w")
def squares_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, profile: str
) -> torch.Tensor:
    """Each square is rounded to the row's format before the sum."""
    inverse = torch.rsqrt(x.square().float().mean(-1, keepdim=True) + eps)
    if profile == "two_step":
        return (x.float() * inverse).to(x.dtype) * weight
    return gained(x.float(), inverse, weight)


@red("rms_norm", profile="once", gate="stress", gain="w")
def squares_in_fp16(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Squares overflow from 256 on: the inverse is 0."""
    mean = x.half().square().float().mean(-1, keepdim=True)
    return gained(x.float(), torch.rsqrt(mean + eps), weight)


@red("rms_norm", profile="once", gate="exact", gain="w")
def bf16_accumulator(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The running sum of squares is rounded to bf16 after every 16 columns."""
    total = torch.zeros_like(x[:, :1])
    for part in x.float().square().split(16, dim=-1):
        total = (total + part.sum(-1, keepdim=True)).to(x.dtype)
    return gained(x.float(), torch.rsqrt(total.float() / x.shape[-1] + eps), weight)


@red("rms_norm", profile="once", gate="shapes", gain="w")
def mean_over_one_less(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The sum of squares divided by d - 1."""
    total = x.float().square().sum(-1, keepdim=True)
    return gained(x.float(), torch.rsqrt(total / max(1, x.shape[-1] - 1) + eps), weight)


@red("rms_norm", profile="once", gate="invariance", gain="w")
def statistics_of_all_rows(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """One mean square for the whole batch."""
    return gained(x.float(), torch.rsqrt(x.float().square().mean() + eps), weight)


# -- the gain


@red("rms_norm", profile="once", gate="exact", gain="1+w")
def one_plus_w_in_bf16(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """1 + w is rounded to the weight's format."""
    return gained(x.float(), inverse_rms(x.float(), eps), 1.0 + weight)


@red("rms_norm", profile="once", gate="shapes", gain="w")
def gain_of_the_neighbour(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Column j takes the gain of column j + 1."""
    return gained(x.float(), inverse_rms(x.float(), eps), weight.roll(-1))


@red("rms_norm", profile="two_step", gate="exact", gain="w")
def gain_before_the_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """(x w) is rounded, then scaled by the inverse: another order of the same factors."""
    return ((x * weight).float() * inverse_rms(x.float(), eps)).to(x.dtype)


# -- indices and memory


@red("rms_norm", profile="once", gate="shapes", gain="w")
def tail_dropped(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Columns are taken in pairs: the last of an odd width is not written."""
    out = gained(x.float(), inverse_rms(x.float(), eps), weight)
    out[:, x.shape[-1] // 2 * 2 :] = 0
    return out


@red("rms_norm", profile="once", gate="shapes", gain="w")
def row_spill(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Columns are stored in pairs: an odd width writes a zero over the first of the next row."""
    out = gained(x.float(), inverse_rms(x.float(), eps), weight)
    out[1:, : x.shape[-1] % 2] = 0
    return out


@red("rms_norm", profile="once", gate="bounds", gain="w")
def writes_its_input(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """x is scaled in its own memory."""
    x.copy_((x.float() * inverse_rms(x.float(), eps)).to(x.dtype))
    return x * weight


@red("rms_norm", profile="once", gate="bounds", gain="w")
def reads_past_the_row(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The column after a row's last is read and masked by a product with 0, which keeps a NaN."""
    beyond = x.as_strided((x.shape[0] - 1, 1), x.stride(), x.storage_offset() + x.shape[-1])
    total = x.float().square().sum(-1, keepdim=True)
    total[:-1] += 0.0 * beyond.float()
    return gained(x.float(), torch.rsqrt(total / x.shape[-1] + eps), weight)


_calls = itertools.count()


@red("rms_norm", profile="float32", gate="invariance", gain="w")
def another_result_each_call(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Every second call moves the inverse by one ulp, which the range allows."""
    inverse = inverse_rms(x, eps)
    if next(_calls) % 2:
        inverse = torch.nextafter(inverse, torch.zeros_like(inverse))
    return x * inverse * weight


@red("rms_norm", profile="once", gate="shapes", expect="crash", gain="w")
def aborts(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The process ends."""
    os.abort()


# -- other people's kernels under a profile or gain that is not theirs


def client(
    gate: str, profile: str, gain: str, requires: tuple[str, ...] = transformers_norms.NEEDS
) -> Any:
    """A client planted where it rounds or gains otherwise."""
    return lambda call, name: red(
        "rms_norm", profile=profile, gate=gate, name=name, requires=requires, gain=gain
    )(call)


client("exact", "once", "w")(transformers_norms.qwen3, "Qwen3RMSNorm")
client("exact", "once", "w")(transformers_norms.llama, "LlamaRMSNorm")
client("exact", "two_step", "w")(transformers_norms.gemma4, "Gemma4RMSNorm")
client("exact", "two_step", "w", ())(torch_norms.torch_rms_norm, "F.rms_norm")
client("exact", "once", "w")(transformers_norms.gemma, "GemmaRMSNorm")
client("exact", "two_step", "1+w")(transformers_norms.gemma, "GemmaRMSNorm")


# -- legal variants


@green("rms_norm", profile="once", gain="w")
def chunks_of_32(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The sum of squares runs over chunks of 32 columns."""
    parts = [p.sum(-1, keepdim=True) for p in x.float().square().split(32, dim=-1)]
    total = torch.cat(parts, -1).sum(-1, keepdim=True)
    return gained(x.float(), torch.rsqrt(total / x.shape[-1] + eps), weight)


@green("rms_norm", profile=("once", "float32"), gain="w")
def in_float64(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Every step is kept wider."""
    wide = x.double()
    inverse = 1.0 / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse * weight.double()).float().to(x.dtype)


@green("rms_norm", profile=("once", "float32"), gain="w")
def columns_reversed(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The squares are summed one by one, from the last column."""
    total = x.float().square().flip(-1).cumsum(-1)[:, -1:]
    return gained(x.float(), torch.rsqrt(total / x.shape[-1] + eps), weight)


@green("rms_norm", profile="two_step", gain="w")
def divided_by_the_root(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """x / sqrt(.): a correctly rounded root and quotient lie within 2 ulps of rsqrt."""
    root = torch.sqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x.float() / root).to(x.dtype) * weight


@green("rms_norm", profile="once", gain="w")
def row_by_row(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """One row at a time, through a dot product."""
    out = torch.empty(x.shape, dtype=x.dtype)
    for row, target in zip(x.float(), out, strict=True):
        target.copy_(gained(row, torch.rsqrt(row.dot(row) / row.numel() + eps), weight))
    return out
