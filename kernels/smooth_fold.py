"""Scales moved from a norm into the next linear layer: contracts and torch implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_one, near_zero
from contract.lazy import lazy
from contract.references.smooth_fold import LEAST
from contract.references.smooth_fold import ln_equalise as equalise_reference
from contract.references.smooth_fold import smooth_fold as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

FP32 = {name: "fp32" for name in ("weight", "gain", "new_gain", "new_weight")}
POINTS = {"roots": "fp32", "scale": "fp32"}
SQRT = {
    "sqrt": "IEEE 754-2019, section 5.4.1: squareRoot is correctly rounded, in fp32 or from fp64"
}


def peak_values(rng: Any, shape: tuple[int, ...]) -> Any:
    """Largest activations of channels: most of them a few units, some outliers of hundreds, some dead channels."""
    peaks = np.exp2(rng.normal(1.0, 2.0, shape))
    return np.where(rng.random(shape) < 0.02, 0.0, peaks)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Weights of 24 bits; in half of the channels both peaks are powers of four, so that the scale is a power of two and
    (1 + w) / s is exact: less 1 it has more bits than fp32 where s > 2. Channels without activity or without weights."""
    outputs, channels = shape["outputs"], shape["channels"]
    weight = full_significands(rng, (outputs, channels), 24) * 2.0**-24
    weight[rng.integers(0, outputs, channels), range(channels)] = rng.choice((-1.0, 1.0), channels)
    weight *= np.exp2(2.0 * rng.integers(-3, 4, channels))
    peaks = np.where(
        np.arange(channels) % 2 == 0,
        np.exp2(2.0 * rng.integers(-4, 5, channels)),
        np.abs(full_significands(rng, (channels,), 24)) * 2.0**-20,
    )
    peaks[5::16] = 0.0
    peaks[11::16] *= 2.0**60
    weight[:, 6::16] = 0.0
    gain = full_significands(rng, (channels,), 24) * 2.0**-24
    return {
        "weight": weight,
        "gain": gain,
        "bias": full_significands(rng, (channels,), 24),
        "peaks": peaks,
    }


# Channels are rows: a tile of Gemma's 2,048 by one of its 2,560 outputs of q, k and v, and of these all by a tile of channels
SHAPES = ({"channels": 256, "outputs": 16}, {"channels": 24, "outputs": 2_560})
AWKWARD = (
    {"channels": 1, "outputs": 1},
    {"channels": 3, "outputs": 257},
    {"channels": 517, "outputs": 5},
    # the one of --effort quick, which calls each launch of it: a batch is a channel
    {"channels": 67, "outputs": 39},
)
STRESS = ({"outputs": 8}, {"outputs": 1}, {"outputs": 33})
EXACT = ({"channels": 128, "outputs": 5}, {"channels": 64, "outputs": 64})

smooth_fold = register(
    Contract(
        name="smooth_fold",
        family="quantize",
        summary="scales of channels divided out of a norm's gain and multiplied into the weights that follow",
        reference=reference,
        operands=(
            tensor("weight", "outputs channels", typical=near_zero, finite=True),
            tensor("gain", "channels", typical=near_zero, finite=True),
            tensor("peaks", "channels", "fp32", typical=peak_values, finite=True),
            output("scale", "channels", "fp32", observed=True),
            output("new_gain", "channels"),
            output("new_weight", "outputs channels"),
        ),
        parameters={"form": ("1+w", "w")},
        profiles=(
            Profile(
                "float32",
                {**POINTS, "gain": "fp32", "weight": "fp32"},
                FP32,
                users="PaliGemma INT8, before its weights are quantised",
            ),
            Profile(
                "once",
                {**POINTS, "gain": "bf16", "weight": "bf16"},
                users="a bf16 checkpoint that is smoothed and saved again",
            ),
        ),
        row_dims=("channels",),
        shapes=SHAPES,
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=EXACT,
        freedoms=SQRT,
    )
)

ln_equalise = register(
    Contract(
        name="ln_equalise",
        family="quantize",
        summary="a layer norm's gain and bias over bounded scales, the weights that follow times them",
        reference=equalise_reference,
        operands=(
            tensor("weight", "outputs channels", typical=near_zero, finite=True),
            tensor("gain", "channels", typical=near_one, finite=True),
            tensor("bias", "channels", typical=near_zero, finite=True),
            tensor("peaks", "channels", "fp32", typical=peak_values, finite=True),
            output("scale", "channels", "fp32", observed=True),
            output("new_gain", "channels"),
            output("new_bias", "channels"),
            output("new_weight", "outputs channels"),
        ),
        scalars=(Scalar("bound", (4.0, 3.0)),),
        profiles=(
            Profile(
                "float32",
                {**POINTS, "gain": "fp32", "bias": "fp32", "weight": "fp32"},
                {**FP32, "bias": "fp32", "new_bias": "fp32"},
                users="SigLIP F143, before its weights are quantised",
            ),
            Profile(
                "once",
                {**POINTS, "gain": "bf16", "bias": "bf16", "weight": "bf16"},
                users="a bf16 checkpoint that is equalised and saved again",
            ),
        ),
        row_dims=("channels",),
        shapes=SHAPES,
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=EXACT,
        freedoms=SQRT,
    )
)


@implementation("smooth_fold", name="torch", profile=("float32", "once"))
def smooth_fold_torch(
    weight: torch.Tensor, gain: torch.Tensor, peaks: torch.Tensor, *, form: str
) -> tuple[torch.Tensor, ...]:
    """Scale, gain and weight; fp32 inside."""
    scale = quotient(peaks, weight_peaks(weight).clamp(min=LEAST)).clamp(min=LEAST)
    return scale, folded(gain, scale, form), multiplied(weight, scale)


@implementation("ln_equalise", name="torch", profile=("float32", "once"))
def ln_equalise_torch(
    weight: torch.Tensor,
    gain: torch.Tensor,
    bias: torch.Tensor,
    peaks: torch.Tensor,
    *,
    bound: float,
) -> tuple[torch.Tensor, ...]:
    """Scale, gain, bias and weight; fp32 inside.

    Raises:
        ValueError: a bound below 1, or one that is no number.
    """
    if not bound >= 1.0:
        raise ValueError(
            f"bound {bound!r}; scales lie between 1 / bound and bound, which is at least 1"
        )
    largest = weight_peaks(weight)
    ratio = quotient(peaks, largest).clamp(1.0 / bound, bound)
    scale = torch.where((peaks > 0) & (largest > 0), ratio, 1.0)
    return scale, folded(gain, scale, "w"), folded(bias, scale, "w"), multiplied(weight, scale)


def weight_peaks(weight: torch.Tensor) -> torch.Tensor:
    """max|W_j| of each channel in fp32."""
    return weight.abs().amax(0).float()


def quotient(peaks: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """sqrt(max|X|) / sqrt(max|W|) in fp32.

    Roots come from fp64, which rounds as fp32's would: torch's own in fp32 are MKL's on AVX2, of which one in five is not
    the nearest.
    """
    active, weights = (x.double().sqrt().float() for x in (peaks.clamp(min=0.0), largest))
    return active / weights


def folded(gain: torch.Tensor, scale: torch.Tensor, form: str) -> torch.Tensor:
    """A gain, or w of 1 + w, over the scales, in the format that it came in."""
    wide = gain.float()
    return ((1.0 + wide) / scale - 1.0 if form == "1+w" else wide / scale).to(gain.dtype)


def multiplied(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Columns of weights times the scales, in the format that they came in."""
    return (weight.float() * scale).to(weight.dtype)
