"""Samplers of typical data and makers of exact rows that several contracts share."""

from __future__ import annotations

from typing import Any

import numpy as np


def near_one(rng: Any, shape: tuple[int, ...]) -> Any:
    """Gains as trained models have them: around 1."""
    return 1.0 + 0.25 * rng.standard_normal(shape, dtype=np.float32)


def near_zero(rng: Any, shape: tuple[int, ...]) -> Any:
    """Gains stored as w of 1 + w, and biases: around 0."""
    return 0.25 * rng.standard_normal(shape, dtype=np.float32)


def logits(rng: Any, shape: tuple[int, ...]) -> Any:
    """Logits before a soft cap: a third of them beyond the usual cap of 30."""
    return 30.0 * rng.standard_normal(shape, dtype=np.float32)


def full_significands(rng: Any, shape: tuple[int, ...], bits: int = 8) -> Any:
    """Random signs times odd integers of exactly `bits` bits, so that every significand bit is used."""
    low = 1 << (bits - 1)
    odd = low + 2 * rng.integers(0, low // 2, shape) + 1
    return np.where(rng.random(shape) < 0.5, -odd, odd).astype(np.float64)


#: Widths of the models that the catalogue serves: SigLIP 1152, Qwen3-VL and Gemma 2048, Qwen3.5 2560, Gemma 4 3840, 5376.
WIDTHS = (1152, 2048, 2560, 3840, 5376)
ROWS = (1, 16, 128)
#: PaliGemma's prefix: 1024 image rows and 4 of the prompt.
PREFIX = 1028


def model_shapes(widths: tuple[int, ...] = WIDTHS) -> tuple[dict[str, int], ...]:
    """Rows 1, 16, 128 at every width, and a long prefix at the narrowest: wide rows show no more when there are more."""
    shapes = tuple({"rows": rows, "d": d} for d in widths for rows in ROWS)
    return (*shapes, {"rows": PREFIX, "d": min(widths)})


#: One row, odd tails, one past a block, one element.
AWKWARD = (
    {"rows": 3, "d": 1},
    {"rows": 2, "d": 257},
    {"rows": 5, "d": 517},
    {"rows": 17, "d": 1025},
)
#: Widths of stress rows: small ones first, where a bound half too small shows.
STRESS = ({"d": 64}, {"d": 5}, {"d": 257}, {"d": 2}, {"d": 512}, {"d": 8}, {"d": 1024}, {"d": 3})
EXACT = ({"d": 64}, {"d": 1024, "rows": 16}, {"d": 16}, {"d": 3840, "rows": 6})


def activations(rng: Any, shape: tuple[int, ...]) -> Any:
    """Inputs of an activation: wide enough that both tails are seen."""
    return 2.0 * rng.standard_normal(shape, dtype=np.float32)


def zero_sums(rng: Any, shape: tuple[int, ...], bits: int = 8) -> Any:
    """Rows of full significands that sum to exactly 0: each value's opposite is in the row (an odd one is 0)."""
    rows, d = shape
    half = full_significands(rng, (rows, d // 2), bits)
    return rng.permuted(np.concatenate([half, -half, np.zeros((rows, d % 2))], -1), axis=-1)


def keep_columns(rng: Any, x: Any, count: int) -> Any:
    """Rows with `count` of their values, zeros of the same sign elsewhere: sums of squares stay within 24 bits."""
    rows, d = x.shape
    if d <= count:
        return x
    keep = np.argsort(rng.random((rows, d)), axis=-1) < count
    return np.where(keep, x, np.copysign(0.0, x))


def layer_scalar(rng: Any, shape: tuple[int, ...]) -> Any:
    """The factor that a layer's output is scaled with: between 1/16 and 1."""
    return rng.uniform(0.0625, 1.0, shape)


#: Outputs of gated activations: the MLP widths of Qwen3-VL 6144 and Gemma 4 15360.
GATED_SHAPES = (
    {"rows": 1, "n": 6_144},
    {"rows": 16, "n": 6_144},
    {"rows": 128, "n": 6_144},
    {"rows": 1, "n": 15_360},
    {"rows": 16, "n": 15_360},
)
