"""Planted int8 products: accumulators, signs, scales and stores that kernels have got wrong, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.gemm_i8 import stored_type
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

ALL = ("once", "float16", "float32")


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The right sum."""
    return torch._int_mm(x, weight.T)


def scaled(
    total: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None,
    w_scales: torch.Tensor | None,
    profile: str,
) -> torch.Tensor:
    """The rest of a right kernel behind its sum."""
    steps = w_scale if w_scales is None else w_scales
    assert steps is not None
    return (total * (x_scale * steps)).to(stored_type(profile))


# -- the accumulator


@red("gemm_i8", profile=ALL, gate="exact")
def accumulator_in_fp32(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """The codes are converted and summed as floats, 16 columns after the others."""
    total = torch.zeros((x.shape[0], weight.shape[0]))
    for a, b in zip(x.split(16, -1), weight.split(16, -1), strict=True):
        total = total + a.float() @ b.float().T
    return scaled(total, x_scale, w_scale, w_scales, profile)


@red("gemm_i8", profile=ALL, gate="exact")
def pairs_saturate_in_16_bits(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """Two products in an int16, as vpmaddubsw adds them: -128 times -128 twice is 32768."""
    k = x.shape[-1] // 2 * 2
    total = exact(x[:, k:], weight[:, k:]) if k < x.shape[-1] else 0
    for c in range(0, k, 2):
        pair = x[:, None, c : c + 2].int() * weight[None, :, c : c + 2].int()
        total = total + pair.sum(-1).clamp(-32768, 32767)
    return scaled(torch.as_tensor(total), x_scale, w_scale, w_scales, profile)


# -- codes


@red("gemm_i8", profile=ALL, gate="exact")
def minus_128_is_clamped(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """-128 is read as -127, which symmetric quantisers stop at."""
    total = exact(x.clamp(min=-127), weight)
    return scaled(total, x_scale, w_scale, w_scales, profile)


@red("gemm_i8", profile=ALL, gate="exact")
def negated_in_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """-(-x) W: in eight bits the opposite of -128 is -128."""
    total = -exact(-x, weight)
    return scaled(total, x_scale, w_scale, w_scales, profile)


@red("gemm_i8", profile=ALL, gate="exact")
def unsigned_without_correction(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """x + 128 in unsigned bytes, and 128 times the sums of the weight never taken off: another zero point."""
    total = exact(x, weight) + 128 * weight.int().sum(-1)
    return scaled(total, x_scale, w_scale, w_scales, profile)


@red("gemm_i8", profile=ALL, gate="exact")
def tail_dropped(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """Columns beyond a multiple of 4 (dp4a) are left out."""
    k = x.shape[-1] // 4 * 4
    total = x[:, :k].int() @ weight[:, :k].int().T
    return scaled(total, x_scale, w_scale, w_scales, profile)


# -- scales


@red("gemm_i8", profile=("once", "float32"), gate="exact", granularity="channel")
def scale_of_the_neighbour(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scales: torch.Tensor,
    *,
    profile: str,
) -> torch.Tensor:
    """Off by one channel."""
    return scaled(exact(x, weight), x_scale, None, w_scales.roll(-1), profile)


@red("gemm_i8", profile=("once", "float32"), gate="exact", granularity="channel")
def first_scale_for_all(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scales: torch.Tensor,
    *,
    profile: str,
) -> torch.Tensor:
    """One scale for the tensor where each channel has its own."""
    return scaled(exact(x, weight), x_scale, w_scales[0], None, profile)


@red("gemm_i8", profile=ALL, gate="exact")
def scale_of_x_left_out(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """Only the weight is scaled back."""
    return scaled(exact(x, weight), torch.ones(()), w_scale, w_scales, profile)


@red("gemm_i8", profile="float32", gate="exact", granularity="channel")
def scale_in_bf16(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scales: torch.Tensor,
    *,
    profile: str,
) -> torch.Tensor:
    """The joint scale is stored in bf16."""
    joint = (x_scale * w_scales).bfloat16().float()
    return scaled(exact(x, weight), torch.ones(()), None, joint, profile)


# -- the store


@red("gemm_i8", profile="once", gate="exact")
def store_rounds_half_away(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Half a unit is added to the magnitude before the cut."""
    total = scaled(exact(x, weight), x_scale, w_scale, w_scales, "float32")
    word = total.view(torch.int32) + (1 << 15)
    rounded = (word & -(1 << 16)).view(torch.float32)
    return torch.where(total.isfinite(), rounded, total).bfloat16()


@red("gemm_i8", profile="float16", gate="exact")
def sum_stored_in_fp16(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
) -> torch.Tensor:
    """The sum is stored before it is scaled: beyond 65504 it is infinite."""
    return (exact(x, weight).half().float() * (x_scale * w_scale)).half()


# -- legal variants


@green("gemm_i8", profile=("once", "float16"))
def scaled_in_float64(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """Neither the sum nor the joint scale is rounded before the last product."""
    steps = w_scale if w_scales is None else w_scales
    assert steps is not None
    total = exact(x, weight).double() * (x_scale.double() * steps.double())
    return total.float().to(stored_type(profile))


@green("gemm_i8", profile=ALL)
def in_int64(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """Columns from the last to the first, in int64."""
    total = x.flip(-1).long() @ weight.flip(-1).long().T
    return scaled(total, x_scale, w_scale, w_scales, profile)


@green("gemm_i8", profile=ALL)
def unsigned_with_correction(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor | None = None,
    w_scales: torch.Tensor | None = None,
    *,
    profile: str,
) -> torch.Tensor:
    """x + 128 in unsigned bytes, corrected by the sums of the weight (VNNI)."""
    total = (x.int() + 128) @ weight.int().T - 128 * weight.int().sum(-1).int()
    return scaled(total, x_scale, w_scale, w_scales, profile)
