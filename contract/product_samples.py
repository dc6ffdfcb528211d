"""One legal execution of a matrix product in a declared order; its range is in `contract.products`.

Products are rounded or fused, element by element; a sum of any order runs a random tree, sorted or not, no deeper than
declared; chunks and matrix-engine steps run in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from contract.endpoints import Array
from contract.orders import Accumulator, AnyOrder, Chunks, Mma

if TYPE_CHECKING:
    from contract.readings.sample import Choice

# Products held at a time.
PIECE = 1 << 22
# Running sums side by side, where one would take too many steps.
LANES = 32
KINDS = ("pairwise", "sequential", "reversed", "sorted", "shuffled", "lanes", "tree")


class Draw:
    """The freedoms of one execution: rounding, flushing and the shape of trees."""

    def __init__(self, acc: Accumulator, choice: Choice, rng: np.random.Generator):
        self.acc, self.choice, self.rng = acc, choice, rng
        self.normal = 2.0**acc.normal

    def flush(self, z: Array) -> Array:
        if self.choice.ftz:
            small = np.abs(z) < self.normal
            # few sums hold one
            if small.any() and (small := small & (z != 0)).any():
                z = np.where(small & (self.rng.random(z.shape) < self.choice.ftz), 0.0 * z, z)
        return z

    def step(self, z: Array) -> Array:
        """One rounding of the accumulator, or none where `wide` is drawn."""
        f = self.acc.rounded(z)
        if self.choice.wide:
            f = np.where(self.rng.random(z.shape) < self.choice.wide, z, f)
        return self.flush(f)

    def products(self, a: Array, b: Array) -> Array:
        """Terms, rounded or as a fused step takes them."""
        exact = a * b
        if self.choice.fused == "yes":
            return exact
        rounded = self.step(exact)
        if self.choice.fused == "no":
            return rounded
        return np.where(self.rng.random(exact.shape) < 0.5, exact, rounded)

    def sum(self, terms: Array, depth: int | None) -> Array:
        """Sum over the last axis in a tree no deeper than `depth`."""
        n = terms.shape[-1]
        kind = self.choice.order
        if kind == "random":
            kind = str(self.rng.choice((*KINDS, "wide")))
        if kind == "wide":
            return np.asarray(terms.sum(axis=-1))
        if kind in ("shuffled", "tree"):
            terms = terms[..., self.rng.permutation(n)]
        elif kind == "sorted":
            terms = np.sort(terms, axis=-1)
            if self.rng.random() < 0.5:
                terms = terms[..., ::-1]
        elif kind == "reversed":
            terms = terms[..., ::-1]
        if kind == "pairwise":
            return self._pairwise(terms)
        limit = n - 1 if depth is None else min(depth, n - 1)
        if kind == "lanes":
            limit = max((n - 1).bit_length(), limit // 2)
        return self._combine(terms, limit, self._split(kind))

    def _pairwise(self, x: Array) -> Array:
        """Adjacent pairs, an odd one carried to the next level: a level at a time, as a NumPy call costs more than a sum."""
        while (n := x.shape[-1]) > 1:
            pairs = self.step(x[..., 0 : n - 1 : 2] + x[..., 1:n:2])
            x = np.concatenate([pairs, x[..., -1:]], -1) if n % 2 else pairs
        return np.asarray(x[..., 0])

    def _running(self, x: Array) -> Array:
        """One after the other; a long sum in which every step draws, in lanes."""
        acc, choice = self.acc, self.choice
        if acc.name == "fp32" and not (choice.wide or choice.ftz):
            narrow = x.astype(np.float32)
            if np.array_equal(narrow, x, equal_nan=True):
                return np.asarray(np.add.accumulate(narrow, axis=-1)[..., -1], np.float64)
        n = x.shape[-1]
        if n > 8 * LANES:
            # A step is a handful of NumPy calls, however few sums there are: of a long sum, lanes that are added up side
            # by side and then one after the other. That is no deeper.
            each = n // LANES
            lanes = x[..., : each * LANES].reshape(*x.shape[:-1], LANES, each)
            return self._running(np.concatenate([self._running(lanes), x[..., each * LANES :]], -1))
        total = np.asarray(x[..., 0])
        for k in range(1, n):
            total = self.step(total + x[..., k])
        return total

    def _split(self, kind: str) -> Callable[[int, int], int]:
        """(terms, depth) -> terms of the left part; 0 for one after the other."""
        if kind == "tree":
            return lambda n, depth: int(
                self.rng.integers(
                    max(1, n - (1 << min(depth - 1, 40))), min(n - 1, 1 << min(depth - 1, 40)) + 1
                )
            )
        return lambda n, depth: 0 if depth >= n - 1 else 1 << ((n - 1).bit_length() - 1)

    def _combine(self, x: Array, depth: int, split: Callable[[int, int], int]) -> Array:
        n = x.shape[-1]
        if n == 1:
            return np.asarray(x[..., 0])
        half = split(n, depth)
        if half:
            left = self._combine(x[..., :half], depth - 1, split)
            return self.step(left + self._combine(x[..., half:], depth - 1, split))
        return self._running(x)

    def mma(self, s: Array, a: Array, b: Array, order: Mma) -> Array:
        """s + a @ b of at most k terms: aligned to the largest exponent, truncated, added, truncated or rounded."""
        x = a * b
        # hardware adds the factors' exponents and does not normalise the product
        exponent = np.frexp(a)[1] + np.frexp(b)[1] - 1
        exponent = np.where(x == 0, -(1 << 20), exponent)
        if self.rng.random() < 0.5:
            exponent = np.where(x == 0, -(1 << 20), np.frexp(x)[1])
        own = np.where(s == 0, -(1 << 20), np.frexp(s)[1])
        largest = np.maximum(own, exponent.max(axis=-1))
        unit = np.ldexp(1.0, np.clip(largest - self.acc.bits - order.guard, -1000, 900))
        total = np.trunc(s / unit) + np.trunc(x / unit[..., None]).sum(axis=-1)
        total = total * unit
        cut = self.acc.truncate(total) if self.rng.random() < 0.5 else self.acc.round(total)
        plain = s + x.sum(axis=-1)
        return self.flush(np.where(np.isfinite(plain), cut, plain))


# a product of random bit patterns overflows and meets infinities at every step: that is what it is for
@np.errstate(all="ignore")
def dot_sample(
    a: Array,
    b: Array,
    order: AnyOrder | Chunks | Mma,
    acc: Accumulator,
    choice: Choice,
    rng: np.random.Generator,
    start: Array | None = None,
) -> Array:
    """start + a @ b: a (..., M, K), b (..., K, N), start (..., M, N), in one order."""
    draw = Draw(acc, choice, rng)
    n, columns = a.shape[-1], b.shape[-1]
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], columns)
    out = np.empty(shape)
    count = max(1, math.prod(shape[:-2]))
    per_step = (
        n if isinstance(order, AnyOrder) else order.k if isinstance(order, Mma) else order.size
    )
    height = max(1, PIECE // max(1, count * columns * min(per_step, n)))
    b_terms = np.swapaxes(draw.flush(b), -1, -2)[..., None, :, :]  # (..., 1, N, K)
    for r in range(0, shape[-2], height):
        at = (..., slice(r, r + height), slice(None))
        rows = draw.flush(a[at])[..., :, None, :]  # (..., M, 1, K)
        first = None if start is None else draw.flush(np.broadcast_to(start, shape)[at])
        with np.errstate(all="ignore"):
            out[at] = _rows(rows, b_terms, order, draw, first)
    return out


def _rows(
    a: Array, b: Array, order: AnyOrder | Chunks | Mma, draw: Draw, start: Array | None
) -> Array:
    n = a.shape[-1]
    if isinstance(order, AnyOrder):
        terms = draw.products(a, b)
        if start is not None:
            terms = np.concatenate([start[..., None], terms], -1)
        return draw.flush(draw.sum(terms, order.depth))
    total = start
    if isinstance(order, Mma):
        if total is None:
            total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]))
        for k in range(0, n, order.k):
            total = draw.mma(total, a[..., k : k + order.k], b[..., k : k + order.k], order)
        return total
    for k in range(0, n, order.size):
        terms = draw.products(a[..., k : k + order.size], b[..., k : k + order.size])
        part = draw.sum(terms, order.depth)
        total = part if total is None else draw.step(total + part)
    assert total is not None
    return draw.flush(total)
