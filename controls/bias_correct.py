"""Planted bias corrections: other signs, means and weights, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.bias_correct import bias_correct_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
BOTH = ("once", "float32")


@red("bias_correct", profile=BOTH, gate="exact")
def not_corrected(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """The old bias."""
    return bias.clone()


@red("bias_correct", profile=BOTH, gate="exact")
def other_sign(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """What the quantised layer lacks is taken away once more."""
    moved = quantised @ quantised_mean - weight @ mean
    return (bias.float() + moved).to(bias.dtype)


@red("bias_correct", profile=BOTH, gate="exact")
def one_mean(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """(W - W_q) mean(x): the activations are taken as not quantised."""
    return bias_correct_torch(weight, quantised, mean, mean, bias)


@red("bias_correct", profile=BOTH, gate="exact")
def one_weight(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """W (mean(x) - mean(x_q)): the weights are taken as not quantised."""
    return bias_correct_torch(weight, weight, mean, quantised_mean, bias)


@red("bias_correct", profile=BOTH, gate="exact")
def means_exchanged(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """W mean(x_q) - W_q mean(x)."""
    return bias_correct_torch(weight, quantised, quantised_mean, mean, bias)


@red("bias_correct", profile=BOTH, gate="exact")
def bias_dropped(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """The correction alone."""
    return bias_correct_torch(weight, quantised, mean, quantised_mean, torch.zeros_like(bias))


@red("bias_correct", profile=BOTH, gate="exact")
def sums_in_bf16(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """Both sums are rounded to bf16 before they cancel."""
    before, after = (weight @ mean).bfloat16(), (quantised @ quantised_mean).bfloat16()
    return (bias.float() + before.float() - after.float()).to(bias.dtype)


@red("bias_correct", profile="once", gate="exact")
def correction_rounded(
    weight: T, quantised: T, mean: T, quantised_mean: T, bias: T
) -> torch.Tensor:
    """The correction is rounded to bf16 before the bias is added."""
    moved = (weight @ mean - quantised @ quantised_mean).to(bias.dtype)
    return (bias.float() + moved.float()).to(bias.dtype)


@red("bias_correct", profile=BOTH, gate="exact")
def last_channel_dropped(
    weight: T, quantised: T, mean: T, quantised_mean: T, bias: T
) -> torch.Tensor:
    """The tail of odd width is not summed."""
    right = bias_correct_torch(
        weight[:, :-1], quantised[:, :-1], mean[:-1], quantised_mean[:-1], bias
    )
    return (
        right
        if mean.shape[0] % 2
        else bias_correct_torch(weight, quantised, mean, quantised_mean, bias)
    )


@red("bias_correct", profile=BOTH, gate="exact")
def weight_of_the_neighbour(
    weight: T, quantised: T, mean: T, quantised_mean: T, bias: T
) -> torch.Tensor:
    """The quantised weights of the output before."""
    return bias_correct_torch(weight, quantised.roll(1, 0), mean, quantised_mean, bias)


@green("bias_correct", profile=BOTH)
def in_float64(weight: T, quantised: T, mean: T, quantised_mean: T, bias: T) -> torch.Tensor:
    """Wider sums."""
    moved = weight.double() @ mean.double() - quantised.double() @ quantised_mean.double()
    return (bias.double() + moved).float().to(bias.dtype)


@green("bias_correct", profile=BOTH)
def channel_by_channel(
    weight: T, quantised: T, mean: T, quantised_mean: T, bias: T
) -> torch.Tensor:
    """Both products of a channel before the next one, the last channel first."""
    total = bias.float()
    for j in reversed(range(mean.shape[0])):
        total = total + (weight[:, j] * mean[j] - quantised[:, j] * quantised_mean[j])
    return total.to(bias.dtype)
