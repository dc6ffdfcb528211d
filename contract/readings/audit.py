"""The audit reading: named roundings only, everything else at 200 bits. It must lie in the range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from contract import functions
from contract.attention import Softmax
from contract.declare import Contract, Profile
from contract.exactround import round_mpf
from contract.interval import Array
from contract.readings.base import Reading
from contract.readings.structured import whole_numbers
from contract.sets import without_nan

BITS = 200
_NAN, _INF = mpmath.mpf("nan"), mpmath.mpf("inf")


def _objects(values: Any) -> Array:
    """The values as 200-bit numbers; each that occurs is made once (codes and 16-bit values recur)."""
    a = np.asarray(values, np.float64)
    different, places = np.unique(a.ravel(), return_inverse=True)
    made = np.fromiter(map(mpmath.mpf, different.tolist()), object, different.size)
    return made[places].reshape(a.shape)


class AuditReading(Reading):
    """Values are object arrays of mpmath numbers; zero signs are not kept (mpmath has one zero).

    Scalars of the contract are their float64 values.
    """

    def __init__(self, contract: Contract, profile: Profile):
        super().__init__(contract, profile)
        mpmath.mp.prec = BITS

    def load(self, values: Any, *, narrow: bool) -> Array:
        return _objects(values)

    def const(self, value: float) -> Array:
        return _objects(value)

    def add(self, a: Array, b: Array) -> Array:
        return np.asarray(a + b, object)

    def mul(self, a: Array, b: Array) -> Array:
        return np.asarray(a * b, object)

    def div(self, a: Array, b: Array) -> Array:
        return np.asarray(_elementwise(_divide, a, b), object)

    def neg(self, a: Array) -> Array:
        return np.asarray(-a, object)

    def view(self, a: Array, f: Callable[[Any], Any]) -> Array:
        return np.asarray(f(a), object)

    def shape_of(self, a: Array) -> tuple[int, ...]:
        return a.shape

    def _square(self, a: Array) -> Array:
        return np.asarray(a * a, object)

    def _absolute(self, a: Array) -> Array:
        return _elementwise(abs, a)

    def _extreme(self, a: Array, b: Array, *, largest: bool) -> Array:
        return _elementwise(
            lambda x, y: _NAN if _bad(x) or _bad(y) else (max(x, y) if largest else min(x, y)), a, b
        )

    def _reduce_extreme(self, a: Array, axis: int, *, largest: bool) -> Array:
        moved = np.moveaxis(a, axis, -1)
        out = np.empty((*moved.shape[:-1], 1), object)
        for index in np.ndindex(*moved.shape[:-1]):
            row = list(moved[index])
            out[(*index, 0)] = (
                _NAN if any(_bad(v) for v in row) else (max(row) if largest else min(row))
            )
        return np.moveaxis(out, -1, axis)

    def _sum(self, a: Array, axis: int, depth: int | None) -> Array:
        return np.asarray(a.sum(axis=axis, keepdims=True), object)

    def _variance(self, x: Array, mean: Array, axis: int, depth: int | None) -> Array:
        d = x - mean
        return np.asarray((d * d).sum(axis=axis, keepdims=True) / x.shape[axis], object)

    def _welford(self, x: Array, axis: int, depth: int | None) -> tuple[Array, Array]:
        mean = np.asarray(x.sum(axis=axis, keepdims=True) / x.shape[axis], object)
        return mean, self._variance(x, mean, axis, depth)

    def _folded(self, x: Array, mean: Array, scale: Array) -> Array:
        return np.asarray(x * scale - mean * scale, object)

    def _function(self, name: str, a: Array, ulps: Any) -> Array:
        f = functions.get(name)

        def one(x: Any) -> Any:
            if _bad(x) or x < f.domain:
                return _NAN
            if name == "rsqrt" and x == 0:
                return _INF
            if name == "rsqrt" and x == _INF:
                return mpmath.mpf(0)
            return f.precise(mpmath.mp, x)

        return _elementwise(one, a)

    def _round(
        self,
        point: str,
        a: Array,
        fmt: str | None,
        mode: str,
        overflow: str | None,
        infinity: str | None,
    ) -> Array:
        if fmt is None:
            return a

        def rounded(x: Any) -> Any:
            return mpmath.mpf(round_mpf(x, fmt, mode, overflow, infinity))  # type: ignore[arg-type]

        return _elementwise(rounded, a)

    def _dot(self, a: Array, b: Array, order: Any, acc: Any, start: Array | None) -> Array:
        total = np.asarray(a @ b, object)
        return total if start is None else np.asarray(total + start, object)

    def _softmax_av(self, s: Array, v: Array, mask: Any, spec: Softmax) -> tuple[Array, Array]:
        from contract.attention_audit import softmax_av_audit

        return softmax_av_audit(s, v, mask, spec)

    def _known(self, mask: Array) -> Array:
        return np.asarray(_elementwise(lambda x: bool(x != 0), mask), bool)

    def _integers(self, values: Array) -> Array:
        return np.asarray(whole_numbers(_elementwise(float, values).astype(np.float64)))

    def _exactly(self, values: Array) -> Array:
        return _elementwise(
            lambda x: mpmath.mpf(x if isinstance(x, float) else int(x)), values.astype(object)
        )

    def _pick_max(self, values: Array, axis: int, nan: str) -> Array:
        as_float = _elementwise(float, values).astype(np.float64)
        if nan == "ignore":
            as_float = without_nan(as_float, nan)
        return _objects(np.argmax(as_float, axis=axis))

    def _one_of(self, parts: list[Array]) -> Array:
        return parts[0]

    def _less(self, a: Array, b: Array) -> Array:
        return np.asarray(_elementwise(lambda x, y: bool(x < y), a, b), bool)

    def _where(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def _union(self, a: Array, b: Array) -> Array:
        return a

    def _fma(self, a: Array, b: Array, c: Array, fused: str) -> Array:
        return np.asarray(a * b + c, object)

    def _concat(self, parts: list[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)


def _bad(x: Any) -> bool:
    return bool(mpmath.isnan(x))


def _divide(x: Any, y: Any) -> Any:
    if y == 0:
        if x == 0 or _bad(x):
            return _NAN
        return _INF if x > 0 else -_INF
    return x / y


def _elementwise(f: Callable[..., Any], *arrays: Array) -> Array:
    wide = np.broadcast_arrays(*arrays)
    rows = zip(*(a.ravel().tolist() for a in wide), strict=True)
    return np.fromiter((f(*row) for row in rows), object, wide[0].size).reshape(wide[0].shape)
