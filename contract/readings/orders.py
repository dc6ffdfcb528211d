"""The orders in which a sampled execution sums, in fp32: trees no deeper than a sum declares."""

from __future__ import annotations

import numpy as np

from contract.endpoints import Array

ORDERS = (
    "pairwise",
    "sequential",
    "reversed",
    "sorted",
    "shuffled",
    "lanes",
    "tree",
    "wide",
)
# A random tree costs one NumPy call a node: wider rows are cut into lanes first.
_LEAVES = 64


def ordered_sum(terms: Array, order: str, depth: int | None, rng: np.random.Generator) -> Array:
    """fp32 sum over the last axis in one order, through a tree no deeper than `depth`, at least ceil(log2 n)."""
    n = terms.shape[-1]
    if n == 1:
        return np.asarray(terms[..., 0])
    if order == "wide":
        return np.asarray(terms.sum(axis=-1))
    if order in ("shuffled", "tree"):
        terms = terms[..., rng.permutation(n)]
    elif order == "sorted":
        terms = np.sort(terms, axis=-1)
        if rng.random() < 0.5:
            terms = terms[..., ::-1]
    elif order == "reversed":
        terms = terms[..., ::-1]
    x = terms.astype(np.float32)
    limit = n - 1 if depth is None else min(depth, n - 1)
    if order == "pairwise":
        return _pairwise(x)
    if order == "tree":
        return _cut_tree(x, limit, rng)
    return _lanes(x, limit if order != "lanes" else max(1, limit // 2))


def _pairwise(x: Array) -> Array:
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            # the odd one is carried to the next level: no term sees more than ceil(log2 n) additions
            x = np.concatenate(
                [x[..., 0:-1:2] + x[..., 1:-1:2] if x.shape[-1] > 1 else x[..., :0], x[..., -1:]],
                -1,
            )
        else:
            x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0].astype(np.float64)


def _lanes(x: Array, depth: int) -> Array:
    """Sequential sums in as few lanes as the depth allows, then a tree over the lanes."""
    n = x.shape[-1]
    lanes = 1
    while -(-n // lanes) - 1 + (lanes - 1).bit_length() > depth and lanes < n:
        lanes *= 2
    if lanes >= n:
        return _pairwise(x)
    return _pairwise(_lane_sums(x, lanes))


def _lane_sums(x: Array, lanes: int) -> Array:
    pad = -x.shape[-1] % lanes
    if pad:
        # -0 is the identity of addition: a padded lane keeps the sign of its zeros
        x = np.concatenate([x, np.full((*x.shape[:-1], pad), -0.0, np.float32)], -1)
    return np.asarray(np.add.accumulate(x.reshape(*x.shape[:-1], -1, lanes), axis=-2)[..., -1, :])


def _cut_tree(x: Array, depth: int, rng: np.random.Generator) -> Array:
    """A random tree, over lane sums where there are many terms."""
    lanes = x.shape[-1]
    if lanes > _LEAVES:
        lanes = int(rng.integers(2, _LEAVES + 1))
        while (
            -(-x.shape[-1] // lanes) - 1 + (lanes - 1).bit_length() > depth and lanes < x.shape[-1]
        ):
            lanes = min(2 * lanes, x.shape[-1])
        if lanes < x.shape[-1]:
            depth -= -(-x.shape[-1] // lanes) - 1
            x = _lane_sums(x, lanes)
    if lanes > _LEAVES or depth < (lanes - 1).bit_length():
        return _pairwise(x)
    return np.asarray(_tree(x, depth, rng), np.float64)


def _tree(x: Array, depth: int, rng: np.random.Generator) -> Array:
    """Split anywhere that leaves both sides a tree of depth - 1: any tree of the depth may come."""
    n = x.shape[-1]
    if n == 1:
        return x[..., 0]
    largest = min(n - 1, 2 ** min(depth - 1, 62))
    cut = int(rng.integers(n - largest, largest + 1))
    left = _tree(x[..., :cut], depth - 1, rng)
    return np.asarray(left + _tree(x[..., cut:], depth - 1, rng))


def merged_moments(terms: Array, lanes: int) -> tuple[Array, Array]:
    """fp32 mean and variance over the last axis: Welford in `lanes` lanes, their moments merged one after the other.

    The values beyond a multiple of the lanes are a block of their own, merged first.
    """
    x = terms.astype(np.float32)
    n = x.shape[-1]
    whole = n - n % lanes
    count, mean, total = _welford_steps(x[..., None, whole:])
    mean, total = mean[..., 0], total[..., 0]
    if whole:
        b, means, totals = _welford_steps(
            np.swapaxes(x[..., :whole].reshape(*x.shape[:-1], -1, lanes), -1, -2)
        )
        for lane in range(lanes):
            share = np.float32(b) / np.float32(count + b)
            delta = means[..., lane] - mean
            total = total + totals[..., lane] + delta * delta * share * np.float32(count)
            mean = mean + share * delta
            count += b
    return mean.astype(np.float64), (total / np.float32(n)).astype(np.float64)


def _welford_steps(x: Array) -> tuple[int, Array, Array]:
    mean: Array = np.zeros(x.shape[:-1], np.float32)
    total: Array = np.zeros(x.shape[:-1], np.float32)
    for k in range(x.shape[-1]):
        delta = x[..., k] - mean
        mean = mean + delta / np.float32(k + 1)
        total = total + delta * (x[..., k] - mean)
    return x.shape[-1], mean, total
