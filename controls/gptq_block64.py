"""Planted GPTQ blocks: errors that go nowhere, the wrong way or from the wrong place, and legal variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.gptq_block64 import by_channel, nearest, stored
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Pair = tuple["torch.Tensor", "torch.Tensor"]
FORMATS = ("e4m3fnuz", "int4")


def block(
    weight: T,
    factor: T,
    scales: T,
    to: str,
    *,
    code: Callable[[T, str], T] = nearest,
    error: Callable[[T, T, T], T] = lambda w, value, diagonal: (w - value) / diagonal,
    kept: Callable[[T], T] = lambda left: left,
    reach: int = 64,
) -> Pair:
    """The right block with one step replaced."""
    left, codes = by_channel(weight), []
    for j in range(len(left)):
        values = code(left[j] / scales, to)
        codes.append(values)
        lost = error(left[j], values * scales, factor[j, j])
        end = min(len(left), j - j % reach + reach)
        left[j + 1 : end] = kept(left[j + 1 : end] - factor[j, j + 1 : end, None] * lost)
    return stored(torch.stack(codes, 1), to), left.T.contiguous()


# -- errors


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def not_compensated(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Every weight to its nearest code."""
    return stored(nearest(weight / scales[:, None], to), to), weight.clone()


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def codes_of_the_original(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Weights are compensated, but what is quantised is what came in."""
    _, compensated = block(weight, factor, scales, to)
    return stored(nearest(weight / scales[:, None], to), to), compensated


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def other_sign(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Errors are added."""
    return block(weight, factor, scales, to, error=lambda w, value, d: (value - w) / d)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def not_over_the_diagonal(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """e_j = w_j - q_j."""
    return block(weight, factor, scales, to, error=lambda w, value, d: w - value)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def over_the_squared_diagonal(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """U_jj^2, as of H^-1 itself."""
    return block(weight, factor, scales, to, error=lambda w, value, d: (w - value) / d**2)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def errors_of_codes(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """The error in steps of the scale, not in weights."""
    codes, left = [], by_channel(weight)
    for j in range(len(left)):
        values = nearest(left[j] / scales, to)
        codes.append(values)
        left[j + 1 :] -= factor[j, j + 1 :, None] * ((left[j] / scales - values) / factor[j, j])
    return stored(torch.stack(codes, 1), to), left.T.contiguous()


# -- the factor


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def lower_factor(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """The column below the diagonal in place of the row behind it."""
    return block(weight, factor.T.contiguous(), scales, to)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def row_of_the_next_channel(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Row j + 1 of U carries the error of channel j."""
    return block(weight, factor.roll(-1, 0), scales, to)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def next_channel_left_out(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Errors reach the channels from j + 2 on."""
    return block(weight, factor.triu(2) + factor.diagonal().diag(), scales, to)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def diagonal_factor(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """The Hessian's diagonal alone: nothing is compensated."""
    return block(weight, factor.diagonal().diag(), scales, to)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def blocks_of_eight(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Errors do not leave blocks of 8 channels."""
    return block(weight, factor, scales, to, reach=8)


# -- codes and storage


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def scale_of_the_row_before(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Each output channel takes its neighbour's scale."""
    return block(weight, factor, scales.roll(1), to)


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def one_scale_for_all(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """The largest scale for every output channel."""
    return block(weight, factor, scales.amax().expand(scales.shape), to)


@red("gptq_block64", profile="each_update", gate="exact", to="int4")
def halves_away(weight: T, factor: T, scales: T) -> Pair:
    """Ties go away from zero."""

    def away(quotient: T, to: str) -> torch.Tensor:
        return (quotient.abs() + 0.5).floor().copysign(quotient).clamp(-8.0, 7.0) + 0.0

    return block(weight, factor, scales, "int4", code=away)


@red("gptq_block64", profile="each_update", gate="exact", to="int4")
def symmetric_range(weight: T, factor: T, scales: T) -> Pair:
    """Codes from -7."""
    return block(weight, factor, scales, "int4", code=lambda q, to: nearest(q, to).clamp(min=-7.0))


@red("gptq_block64", profile="each_update", gate="exact", to="e4m3fnuz")
def overflow_is_nan(weight: T, factor: T, scales: T) -> Pair:
    """Values beyond 240 become the code of NaN."""
    return block(
        weight, factor, scales, "e4m3fnuz", code=lambda q, to: q.to(torch.float8_e4m3fnuz).float()
    )


@red("gptq_block64", profile="each_update", gate="exact", to="e4m3fnuz")
def through_fp16(weight: T, factor: T, scales: T) -> Pair:
    """w / s is rounded to fp16 on the way to the code."""
    return block(
        weight, factor, scales, "e4m3fnuz", code=lambda q, to: nearest(q.half().float(), to)
    )


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def weights_in_bf16(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Compensated weights are kept in bf16."""
    return block(weight, factor, scales, to, kept=lambda left: left.bfloat16().float())


@red("gptq_block64", profile="each_update", gate="exact", to=FORMATS)
def updates_summed_first(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """All errors of a channel are summed before its weight moves: one rounding where there is one an update."""
    codes, errors, left = [], torch.zeros(weight.T.shape), by_channel(weight)
    for j in range(len(left)):
        left[j] -= factor[:j, j] @ errors[:j]
        values = nearest(left[j] / scales, to)
        codes.append(values)
        errors[j] = (left[j] - values * scales) / factor[j, j]
    return stored(torch.stack(codes, 1), to), left.T.contiguous()


# -- legal variants


@green("gptq_block64", profile="each_update", to=FORMATS)
def fused_updates(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """Products and differences in float64, rounded once an update."""
    codes, left = [], by_channel(weight)
    for j in range(len(left)):
        values = nearest(left[j] / scales, to)
        codes.append(values)
        error = ((left[j] - values * scales) / factor[j, j]).double()
        moved = left[j + 1 :].double() - factor[j, j + 1 :, None].double() * error
        left[j + 1 :] = moved.float()
    return stored(torch.stack(codes, 1), to), left.T.contiguous()


@green("gptq_block64", profile="each_update", to=FORMATS)
def channel_gathers_its_updates(weight: T, factor: T, scales: T, *, to: str) -> Pair:
    """A channel takes all its updates, one after the other, when its turn comes."""
    codes, left = [], by_channel(weight)
    errors: list[torch.Tensor] = []
    for j in range(len(left)):
        for i, error in enumerate(errors):
            left[j] -= factor[i, j] * error
        values = nearest(left[j] / scales, to)
        codes.append(values)
        errors.append((left[j] - values * scales) / factor[j, j])
    return stored(torch.stack(codes, 1), to), left.T.contiguous()
