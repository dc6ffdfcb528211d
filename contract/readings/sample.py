"""The sample reading (one legal execution, freedoms drawn at random) and the nominal one (no freedom drawn).

Values are float64 arrays. An unnamed step is an fp32 one, or kept in float64 where `wide` is drawn. float64 sums,
products, quotients and square roots of fp32 values, rounded to fp32, are the fp32 results (53 >= 2 * 24 + 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from contract import functions
from contract.attention import Softmax
from contract.declare import Contract, Profile
from contract.endpoints import TINY, Array, to_f32, ulp32
from contract.formats import get as get_format
from contract.formats import round_to
from contract.fused import fma_f32
from contract.orders import Accumulator
from contract.readings.base import Change, Reading
from contract.readings.orders import ORDERS, merged_moments, ordered_sum
from contract.readings.structured import whole_numbers
from contract.sets import without_nan


@dataclass(frozen=True)
class Choice:
    """Which freedoms a sampled execution draws, and how hard.

    Attributes:
        wide: share of elements of each step that stay in float64.
        ftz: share of elements of each step whose subnormals are flushed.
        order: one of contract.readings.orders.ORDERS, or 'random' (drawn per sum).
        ulps: 'none', 'random', 'plus', 'minus'.
        fused: 'no', 'yes' or 'random' per element.
        alternative: 'first', 'second' or 'random' per element, for joins of two ways.
    """

    wide: float = 0.0
    ftz: float = 0.0
    order: str = "pairwise"
    ulps: str = "none"
    fused: str = "no"
    alternative: str = "first"


NOMINAL = Choice()
RANDOM = Choice(
    wide=0.5, ftz=0.5, order="random", ulps="random", fused="random", alternative="random"
)


@lru_cache(1 << 10)
def _narrow(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


class SampleReading(Reading):
    """One execution in fp32, with the freedoms of `choice` drawn from `rng` and the faults of `change`."""

    def __init__(
        self,
        contract: Contract,
        profile: Profile,
        depths: Mapping[str, int] | None = None,
        *,
        choice: Choice = NOMINAL,
        rng: np.random.Generator | None = None,
        change: Change | None = None,
    ):
        super().__init__(contract, profile, depths)
        self.choice, self.change = choice, change or Change()
        self.rng = rng or np.random.default_rng(0)
        self.values: dict[str, Array] = {}
        if profile.keeps_subnormals and choice.ftz:
            self.choice = replace(choice, ftz=0.0)

    def _step(self, z: Array) -> Array:
        # its callers have told NumPy to keep silent
        f = to_f32(z)
        wide = self.choice.wide
        if wide:
            f = z if wide >= 1 else np.where(self.rng.random(z.shape) < wide, z, f)
        return self._flush(f)

    def _flush(self, f: Array) -> Array:
        if self.choice.ftz:
            small = (np.abs(f) < TINY) & (f != 0)
            if small.any():
                f = np.where(
                    small & (self.rng.random(f.shape) < self.choice.ftz), np.copysign(0.0, f), f
                )
        return f

    def load(self, values: Any, *, narrow: bool) -> Array:
        return np.asarray(values, np.float64)

    def const(self, value: float) -> Array:
        if self.choice.wide and (self.choice.wide >= 1 or self.rng.random() < self.choice.wide):
            return np.asarray(value)
        # zeros of both signs are one key
        return np.asarray(_narrow(value) if value else value)

    def add(self, a: Array, b: Array) -> Array:
        a, b = self._flush(a), self._flush(b)
        with np.errstate(all="ignore"):
            return self._step(np.asarray(a + b))

    def mul(self, a: Array, b: Array) -> Array:
        a, b = self._flush(a), self._flush(b)
        with np.errstate(all="ignore"):
            return self._step(np.asarray(a * b))

    def div(self, a: Array, b: Array) -> Array:
        a, b = self._flush(a), self._flush(b)
        with np.errstate(all="ignore"):
            return self._step(np.asarray(a / b))

    def neg(self, a: Array) -> Array:
        return np.asarray(-a)

    def view(self, a: Array, f: Callable[[Any], Any]) -> Array:
        return np.asarray(f(a))

    def shape_of(self, a: Array) -> tuple[int, ...]:
        return a.shape

    def _square(self, a: Array) -> Array:
        return self.mul(a, a)

    def _absolute(self, a: Array) -> Array:
        return np.abs(a)

    def _extreme(self, a: Array, b: Array, *, largest: bool) -> Array:
        a, b = self._flush(a), self._flush(b)
        return np.asarray(np.maximum(a, b) if largest else np.minimum(a, b))

    def _reduce_extreme(self, a: Array, axis: int, *, largest: bool) -> Array:
        return np.asarray((np.max if largest else np.min)(self._flush(a), axis=axis, keepdims=True))

    def _sum(self, a: Array, axis: int, depth: int | None) -> Array:
        terms = np.moveaxis(self._flush(a), axis, -1)
        order = self.choice.order
        if order == "random":
            order = str(self.rng.choice(ORDERS))
        with np.errstate(all="ignore"):
            total = ordered_sum(terms, order, depth, self.rng)
        return np.moveaxis(self._flush(np.asarray(total)[..., None]), -1, axis)

    def _variance(self, x: Array, mean: Array, axis: int, depth: int | None) -> Array:
        deviation = self.add(x, self.neg(mean))
        total = self._sum(self._square(deviation), axis, depth)
        n = float(x.shape[axis])
        return self._union(
            self.div(total, self.const(n)),
            self.mul(total, self.div(self.const(1.0), self.const(n))),
        )

    def _welford(self, x: Array, axis: int, depth: int | None) -> tuple[Array, Array]:
        terms = np.moveaxis(self._flush(x), axis, -1)
        order = self.choice.order
        if order == "random":
            order = str(self.rng.choice(ORDERS))
        with np.errstate(all="ignore"):
            if order == "wide":
                mean = terms.mean(axis=-1)
                variance = np.square(terms - mean[..., None]).mean(axis=-1)
            else:
                if order == "shuffled":
                    terms = terms[..., self.rng.permutation(terms.shape[-1])]
                elif order in ("sorted", "reversed"):
                    terms = np.sort(terms, axis=-1) if order == "sorted" else terms[..., ::-1]
                mean, variance = merged_moments(terms, 64 if order == "lanes" else 8)
        return tuple(  # type: ignore[return-value]
            np.moveaxis(self._flush(np.asarray(v)[..., None]), -1, axis) for v in (mean, variance)
        )

    def _folded(self, x: Array, mean: Array, scale: Array) -> Array:
        return self._fma(x, scale, self.neg(self.mul(mean, scale)), "either")

    def _function(self, name: str, a: Array, ulps: Any) -> Array:
        f = functions.get(name)
        a = self._flush(a)
        with np.errstate(all="ignore"):
            true = f.value(a)
            k = ulps(np.abs(a)) if callable(ulps) else ulps
            if self.choice.ulps == "none":
                return self._step(true)
            unit = ulp32(true)
            if self.choice.ulps == "random":
                error = self.rng.uniform(-1.0, 1.0, true.shape)
            else:
                error = np.full(true.shape, 1.0 if self.choice.ulps == "plus" else -1.0)
            moved = to_f32(true + error * k * unit)
            # rounding may have carried it past the bound: take the neighbour inside
            outside = np.abs(moved - true) > k * unit
            inner = np.nextafter(moved.astype(np.float32), true.astype(np.float32)).astype(
                np.float64
            )
            moved = np.where(outside, inner, moved)
            if f.nonnegative:
                moved = np.where((moved <= 0) & (true >= 0), 0.0, moved)
            keep = f.exact(a) | ~np.isfinite(true)
        return self._flush(np.where(keep, true, moved))

    def _round(
        self,
        point: str,
        a: Array,
        fmt: str | None,
        mode: str,
        overflow: str | None,
        infinity: str | None,
    ) -> Array:
        if fmt is None or point in self.change.drop:
            self.values[point] = a
            return a
        mode = self.change.modes.get(point, mode)
        with np.errstate(over="ignore", invalid="ignore"):
            r = round_to(a, fmt, mode, overflow, infinity)  # type: ignore[arg-type]
        f = get_format(fmt)
        moved = r != a
        if self.choice.ftz and f.kind == "float" and f.emin == -126 and moved.any():
            # only what a step computed: a conversion keeps subnormals
            r = np.where(moved, self._flush(r), r)
        self.values[point] = r
        return r

    def _dot(self, a: Array, b: Array, order: Any, acc: Accumulator, start: Array | None) -> Array:
        from contract.product_samples import dot_sample

        return dot_sample(a, b, order, acc, self.choice, self.rng, start)

    def _softmax_av(self, s: Array, v: Array, mask: Any, spec: Softmax) -> tuple[Array, Array]:
        from contract.attention_samples import softmax_av_sample

        return softmax_av_sample(self, self._flush(s), self._flush(v), mask, spec)

    def _known(self, mask: Array) -> Array:
        return np.asarray(mask != 0)

    def _integers(self, values: Array) -> Array:
        return np.asarray(whole_numbers(values))

    def _exactly(self, values: Array) -> Array:
        return values.astype(np.float64)

    def _pick_max(self, values: Array, axis: int, nan: str) -> Array:
        if nan == "ignore":
            values = without_nan(values, nan)
        return np.asarray(np.argmax(values, axis=axis), np.float64)

    def _one_of(self, parts: list[Array]) -> Array:
        total = parts[0]
        for part in parts[1:]:
            total = self._union(total, part)
        return total

    def _less(self, a: Array, b: Array) -> Array:
        return np.asarray(self._flush(a) < self._flush(b))

    def _where(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def _union(self, a: Array, b: Array) -> Array:
        if self.choice.alternative == "first":
            return a
        if self.choice.alternative == "second":
            return b
        return np.where(self.rng.random(np.broadcast_shapes(a.shape, b.shape)) < 0.5, a, b)

    def _fma(self, a: Array, b: Array, c: Array, fused: str) -> Array:
        a, b, c = self._flush(a), self._flush(b), self._flush(c)
        if fused == "no" or (fused == "either" and self.choice.fused == "no"):
            return self.add(self.mul(a, b), c)
        with np.errstate(over="ignore"):
            one = self._flush(fma_f32(to_f32(a), to_f32(b), to_f32(c)))
        if fused == "yes" or self.choice.fused == "yes":
            return one
        return self._union_random(one, self.add(self.mul(a, b), c))

    def _union_random(self, a: Array, b: Array) -> Array:
        return np.where(self.rng.random(a.shape) < 0.5, a, b)

    def _concat(self, parts: list[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)
