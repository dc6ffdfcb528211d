"""Planted folds of scales: one side only, the wrong channel, the other convention, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.smooth_fold import (
    folded,
    ln_equalise_torch,
    multiplied,
    quotient,
    smooth_fold_torch,
    weight_peaks,
)
from contract.lazy import lazy
from contract.references.smooth_fold import LEAST

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Parts = tuple["torch.Tensor", ...]
BOTH = ("float32", "once")
FORMS = ("1+w", "w")


def finished(weight: T, gain: T, scale: T, form: str) -> Parts:
    """What follows from these scales."""
    return scale, folded(gain, scale, form), multiplied(weight, scale)


def scales(weight: T, peaks: T) -> torch.Tensor:
    """The right scales."""
    largest = weight_peaks(weight).clamp(min=LEAST)
    return quotient(peaks, largest).clamp(min=LEAST)


# -- one side, the other side


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def gain_kept(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """Only the weights are scaled."""
    scale, _, new_weight = smooth_fold_torch(weight, gain, peaks, form=form)
    return scale, gain.clone(), new_weight


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def weight_kept(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """Only the gain is scaled."""
    scale, new_gain, _ = smooth_fold_torch(weight, gain, peaks, form=form)
    return scale, new_gain, weight.clone()


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def sides_exchanged(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """The gain is multiplied, the weights are divided."""
    scale = scales(weight, peaks)
    return scale, folded(gain, 1.0 / scale, form), (weight.float() / scale).to(weight.dtype)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def product_with_the_reciprocal(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """g (1 / s) in bf16 for g / s."""
    scale, _, new_weight = smooth_fold_torch(weight, gain, peaks, form=form)
    inverse = (1.0 / scale).bfloat16().float()
    wide = gain.float()
    new_gain = (1.0 + wide) * inverse - 1.0 if form == "1+w" else wide * inverse
    return scale, new_gain.to(gain.dtype), new_weight


# -- the gain's convention


@red("smooth_fold", profile=BOTH, gate="exact", form="1+w")
def one_not_taken_off(weight: T, gain: T, peaks: T) -> Parts:
    """(1 + w) / s is stored where the norm adds 1 again."""
    scale, _, new_weight = smooth_fold_torch(weight, gain, peaks, form="1+w")
    return scale, ((1.0 + gain.float()) / scale).to(gain.dtype), new_weight


@red("smooth_fold", profile="once", gate="exact", form="1+w")
def one_plus_w_in_bf16(weight: T, gain: T, peaks: T) -> Parts:
    """1 + w in the weight's own format."""
    scale, _, new_weight = smooth_fold_torch(weight, gain, peaks, form="1+w")
    return scale, ((1.0 + gain).float() / scale - 1.0).to(gain.dtype), new_weight


# -- the scale


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def no_root(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """alpha = 1: the whole ratio."""
    ratio = peaks.clamp(min=0.0) / weight_peaks(weight).clamp(min=LEAST)
    return finished(weight, gain, ratio.clamp(min=LEAST), form)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def activations_alone(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """The weights' peaks are left out."""
    return finished(weight, gain, peaks.clamp(min=0.0).sqrt().clamp(min=LEAST), form)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def peaks_of_signed_weights(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """max W for max|W|."""
    largest = weight.amax(0).float().clamp(min=LEAST)
    scale = quotient(peaks, largest).clamp(min=LEAST)
    return finished(weight, gain, scale, form)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def peaks_of_the_first_layer(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """The first half of what reads the norm (q without k and v)."""
    first = weight[: max(1, weight.shape[0] // 2)]
    return finished(weight, gain, scales(first, peaks), form)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def one_scale_for_all(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """The largest channel's scale."""
    scale = scales(weight, peaks)
    return finished(weight, gain, scale.amax().expand(scale.shape).contiguous(), form)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def scale_of_the_neighbour(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """Weights take the scale of the channel before."""
    scale = scales(weight, peaks)
    return scale, folded(gain, scale, form), multiplied(weight, scale.roll(1))


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def dead_channels_divided_by_zero(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """No least scale: infinities where a channel is never active."""
    scale = quotient(peaks, weight_peaks(weight).clamp(min=LEAST))
    return finished(weight, gain, scale, form)


@red("smooth_fold", profile=BOTH, gate="exact", form=FORMS)
def scale_in_bf16(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """Scales in bf16."""
    return finished(weight, gain, scales(weight, peaks).bfloat16().float(), form)


@red("smooth_fold", profile="float32", gate="exact", form=FORMS)
def root_of_the_quotient(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """One root, of the quotient: other last bits."""
    ratio = peaks.clamp(min=0.0) / weight_peaks(weight).clamp(min=LEAST)
    return finished(weight, gain, ratio.sqrt().clamp(min=LEAST), form)


# -- legal variants


@green("smooth_fold", profile=BOTH, form=FORMS)
def in_float64(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """Quotients and products are kept wider; roots and scale are fp32."""
    scale = scales(weight, peaks)
    wide, s = gain.double(), scale.double()
    new_gain = (1.0 + wide) / s - 1.0 if form == "1+w" else wide / s
    return scale, new_gain.float().to(gain.dtype), (weight.double() * s).float().to(weight.dtype)


@green("smooth_fold", profile=BOTH, form=FORMS)
def layer_by_layer(weight: T, gain: T, peaks: T, *, form: str) -> Parts:
    """Peaks and products of 96 outputs at a time."""
    tiles = weight.split(96)
    largest = torch.stack([weight_peaks(tile) for tile in tiles]).amax(0).clamp(min=LEAST)
    scale = quotient(peaks, largest).clamp(min=LEAST)
    return scale, folded(gain, scale, form), torch.cat([multiplied(t, scale) for t in tiles])


# -- bounded scales


@red("ln_equalise", profile=BOTH, gate="exact")
def bias_kept(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """The norm's bias is not divided."""
    scale, new_gain, _, new_weight = ln_equalise_torch(weight, gain, bias, peaks, bound=bound)
    return scale, new_gain, bias.clone(), new_weight


@red("ln_equalise", profile=BOTH, gate="exact")
def norm_kept(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """Only the weights are scaled."""
    scale, _, _, new_weight = ln_equalise_torch(weight, gain, bias, peaks, bound=bound)
    return scale, gain.clone(), bias.clone(), new_weight


@red("ln_equalise", profile=BOTH, gate="exact")
def weights_kept(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """Only the norm is scaled."""
    parts = ln_equalise_torch(weight, gain, bias, peaks, bound=bound)
    return *parts[:3], weight.clone()


@red("ln_equalise", profile=BOTH, gate="exact")
def gain_is_one_plus_w(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """(1 + w) / s - 1, as of an RMS norm."""
    scale, _, new_bias, new_weight = ln_equalise_torch(weight, gain, bias, peaks, bound=bound)
    return scale, folded(gain, scale, "1+w"), new_bias, new_weight


def held_by(weight: T, gain: T, bias: T, peaks: T, low: float, high: float) -> Parts:
    """Everything from scales between two others."""
    largest = weight_peaks(weight)
    ratio = quotient(peaks, largest).clamp(low, high)
    scale = torch.where((peaks > 0) & (largest > 0), ratio, 1.0)
    return scale, folded(gain, scale, "w"), folded(bias, scale, "w"), multiplied(weight, scale)


@red("ln_equalise", profile=BOTH, gate="exact")
def not_bounded(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """Any scale."""
    return held_by(weight, gain, bias, peaks, 0.0, float("inf"))


@red("ln_equalise", profile=BOTH, gate="exact")
def bounded_above_alone(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """No least scale."""
    return held_by(weight, gain, bias, peaks, 0.0, bound)


@red("ln_equalise", profile=BOTH, gate="exact")
def bound_of_the_square(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """The ratio is bounded before its root is taken."""
    return held_by(weight, gain, bias, peaks, bound**-0.5, bound**0.5)


@red("ln_equalise", profile=BOTH, gate="exact")
def dead_channels_at_the_bound(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """A channel that is never active has the least scale, one without weights the largest."""
    largest = weight_peaks(weight)
    scale = quotient(peaks, largest).nan_to_num(1.0, bound, 1.0)
    scale = scale.clamp(1.0 / bound, bound)
    return scale, folded(gain, scale, "w"), folded(bias, scale, "w"), multiplied(weight, scale)


@red("ln_equalise", profile=BOTH, gate="exact")
def scales_exchanged(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """sqrt(max|W|) / sqrt(max|X|)."""
    scale = 1.0 / ln_equalise_torch(weight, gain, bias, peaks, bound=bound)[0]
    return scale, folded(gain, scale, "w"), folded(bias, scale, "w"), multiplied(weight, scale)


@green("ln_equalise", profile=BOTH)
def equalised_in_float64(weight: T, gain: T, bias: T, peaks: T, *, bound: float) -> Parts:
    """Quotients and products are kept wider."""
    scale = ln_equalise_torch(weight, gain, bias, peaks, bound=bound)[0]
    new_gain, new_bias = ((x.double() / scale.double()).float().to(x.dtype) for x in (gain, bias))
    return scale, new_gain, new_bias, (weight.double() * scale.double()).float().to(weight.dtype)
