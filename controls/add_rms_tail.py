"""Planted tails of residual blocks: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.add_rms_tail import normed
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Pair = tuple["torch.Tensor", "torch.Tensor"]


def two_steps(wide: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The normed row in bf16, and then its product with the gain."""
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return ((wide * inverse).bfloat16().float() * weight.float()).bfloat16()


@red("add_rms_tail", profile="fused", gate="exact", branch_norm="no", scale="no")
def statistics_of_the_rounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The norm takes its mean square from the stored sum and its values from the unrounded one."""
    stream = x.float() + residual.float()
    stored = stream.to(x.dtype).float()
    inverse = torch.rsqrt(stored.square().mean(-1, keepdim=True) + eps)
    return stored.to(x.dtype), (stream * inverse * weight.float()).to(x.dtype)


@red("add_rms_tail", profile="each", gate="exact", branch_norm="no", scale="no")
def statistics_of_the_unrounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The norm takes its mean square from the unrounded sum and its values from the stored one."""
    stream = x.float() + residual.float()
    stored = stream.to(x.dtype).float()
    inverse = torch.rsqrt(stream.square().mean(-1, keepdim=True) + eps)
    return stored.to(x.dtype), (stored * inverse * weight.float()).to(x.dtype)


@red("add_rms_tail", profile="each", gate="exact", branch_norm="no", scale="no")
def norm_of_the_unrounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The whole norm reads the sum before the store."""
    stream = x.float() + residual.float()
    return stream.to(x.dtype), normed(stream, weight, eps).to(x.dtype)


@red("add_rms_tail", profile="fused", gate="exact", branch_norm="no", scale="no")
def norm_of_the_stored_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The whole norm reads the sum after the store."""
    stored = x + residual
    return stored, normed(stored.float(), weight, eps).to(x.dtype)


@red("add_rms_tail", profile="two_step", gate="exact", branch_norm="no", scale="no")
def normed_row_not_rounded(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The gain meets the normed row in fp32."""
    total = x + residual
    return total, normed(total.float(), weight, eps).to(x.dtype)


@red("add_rms_tail", profile="two_step", gate="exact", branch_norm="no", scale="no")
def two_step_norm_of_the_unrounded_sum(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The norm reads the sum before the store."""
    stream = x.float() + residual.float()
    return stream.to(x.dtype), two_steps(stream, weight, eps)


@red("add_rms_tail", profile="two_step", gate="exact", branch_norm="no", scale="no")
def norm_of_the_branch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The norm reads the branch, not the stream it was added to."""
    return x + residual, two_steps(x.float(), weight, eps)


@red("add_rms_tail", profile="two_step", gate="exact", branch_norm="no", scale="no")
def one_plus_gain(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """1 + w where the gain is w."""
    total = x + residual
    return total, two_steps(total.float(), 1.0 + weight.float(), eps)


# lint: the format of what is handed on is the fault
@red("add_rms_tail", profile="each", gate="shapes", branch_norm="no", scale="no")
def residual_not_rounded(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The stream is handed on in fp32."""
    stream = x.float() + residual.float()
    return stream, normed(stream.to(x.dtype).float(), weight, eps).to(x.dtype)


@red("add_rms_tail", profile="each", gate="shapes", branch_norm="no", scale="yes")
def scalar_after_the_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scalar: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The normed row is scaled, the stream is not."""
    stored = x + residual
    return stored, (normed(stored.float(), weight, eps) * scalar.float()).to(x.dtype)


@red("add_rms_tail", profile="each", gate="stress", branch_norm="no", scale="yes")
def sum_not_rounded_before_the_scalar(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scalar: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """(x + h) s with one rounding."""
    stored = ((x.float() + residual.float()) * scalar.float()).to(x.dtype)
    return stored, normed(stored.float(), weight, eps).to(x.dtype)


@red("add_rms_tail", profile=("each", "fused"), gate="shapes", branch_norm="yes", scale="no")
def branch_norm_skipped(
    x: torch.Tensor,
    residual: torch.Tensor,
    branch_weight: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The branch is only gained."""
    stored = x * branch_weight + residual
    return stored, normed(stored.float(), weight, eps).to(x.dtype)


@red("add_rms_tail", profile="each", gate="exact", branch_norm="yes", scale="no")
def branch_not_rounded(
    x: torch.Tensor,
    residual: torch.Tensor,
    branch_weight: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The normed branch is added in fp32."""
    stored = (normed(x.float(), branch_weight, eps) + residual.float()).to(x.dtype)
    return stored, normed(stored.float(), weight, eps).to(x.dtype)


@red("add_rms_tail", profile="each", gate="shapes", branch_norm="yes", scale="no")
def gains_exchanged(
    x: torch.Tensor,
    residual: torch.Tensor,
    branch_weight: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
) -> Pair:
    """The branch takes the next norm's gain and the other way round."""
    stored = normed(x.float(), weight, eps).to(x.dtype) + residual
    return stored, normed(stored.float(), branch_weight, eps).to(x.dtype)


@red("add_rms_tail", profile="each", gate="bounds", branch_norm="no", scale="no")
def residual_in_place(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The stream is overwritten, which only an implementation that says so may do."""
    residual.add_(x)
    return residual.clone(), normed(residual.float(), weight, eps).to(x.dtype)


@green("add_rms_tail", profile="fused", branch_norm="no", scale="no")
def in_float64(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """Every step is kept wider."""
    stream = x.double() + residual.double()
    root = torch.sqrt(stream.square().mean(-1, keepdim=True) + eps)
    out = (stream / root * weight.double()).float().to(x.dtype)
    return stream.float().to(x.dtype), out


@green("add_rms_tail", profile="each", branch_norm="no", scale="no")
def row_by_row(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """One row at a time."""
    stored = torch.stack([a + b for a, b in zip(x, residual, strict=True)])
    rows = [normed(row.float(), weight, eps).to(x.dtype) for row in stored]
    return stored, torch.stack(rows)


@green("add_rms_tail", profile="two_step", branch_norm="no", scale="no")
def two_steps_in_float64(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> Pair:
    """The mean square and its root are kept wider."""
    total = x + residual
    wide = total.double()
    inverse = 1.0 / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    return total, (wide * inverse).float().to(x.dtype) * weight
