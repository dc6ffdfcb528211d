"""Samplers of typical data and makers of exact rows that the kernels of the delta rule share."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Freedoms that several kernels of the family have, with the sources of their bounds.
EXP = "CUDA C++ Programming Guide, single-precision functions: expf at most 2 ulp"
ANY_ORDER = "any order: a proof, Higham, Accuracy and Stability, sections 3.1 and 4.2"


def unit_rows(rng: Any, shape: tuple[int, ...]) -> Any:
    """Keys and queries as the rule takes them: length 1 along the last axis."""
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rates(rng: Any, shape: tuple[int, ...]) -> Any:
    """beta, behind a sigmoid: between 0 and 1."""
    return rng.uniform(0.0, 1.0, shape)


def log_decays(rng: Any, shape: tuple[int, ...]) -> Any:
    """g, at most 0: from heads that forget at once to heads that keep all."""
    return -rng.uniform(0.0, 2.0, shape) * np.exp2(rng.integers(-8, 1, shape))


def half_keys(rng: Any, shape: tuple[int, ...]) -> Any:
    """Keys of length exactly 1: four entries of +-1/2 along the last axis (all of them, where there are fewer)."""
    x = np.where(rng.random(shape) < 0.5, -0.5, 0.5)
    keep = np.argsort(rng.random(shape), axis=-1) < 4
    return np.where(keep, x, 0.0)
