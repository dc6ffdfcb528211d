"""The line reading: over a run of neighbouring inputs, what the range holds for certain.

Neighbouring inputs x(t), t in [-1, 1], lie on a line, and so do, nearly, the results of every smooth step. A `Line` says
of each t that the interval of the range reading (contract.readings.range) satisfies

    lo <= a + b t - w    and    hi >= a + b t + w,

so that an output between the roundings of those two ends is allowed, whatever else is. w is an inner width: the budgets
of the functions, less what a line misses of a curve (a second derivative's bound) and float64's errors; where it is
negative the interval need not hold the line, but comes within |w| of it. Every other freedom, the outward steps and the
joins of the range only widen it, and are left out here. A run of which nothing is certain has w = -inf.

Nothing that this reading says can refuse an output: what it does not accept is for the range to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from contract import functions
from contract.case import Case, Kernel
from contract.declare import Contract, Operand, Profile
from contract.endpoints import Array
from contract.formats import Format
from contract.formats import get as get_format
from contract.readings.base import Reading

#: float64's own error of one step on these lines, relative to the largest value: its roundings and those of a, b and w.
_FUZZ = 2.0**-49
#: The error of a function's float64 form (erf's 2^-45, the least distance of tanh from 1), and of its derivatives.
_FUNCTION_FUZZ = 2.0**-43
#: Half an fp32 ulp relative to its value, at least: an ulp lies between 2^-24 and 2^-23 of it.
_LEAST_ULP = 2.0**-24
#: The least fp32 ulp there is.
_SMALLEST = 2.0**-149


class NoLine(Exception):
    """A step through which no line leads: a sum, a choice that is not made run by run, a format of integers."""


class Line:
    """a + b t within the range by w, for t in [-1, 1]; arrays of one shape, or of none for what is constant."""

    __slots__ = ("a", "b", "w")

    def __init__(self, a: Array, b: Array, w: Array) -> None:
        self.a, self.b, self.w = a, b, w

    @property
    def most(self) -> Array:
        """Largest magnitude of the line."""
        return np.asarray(np.abs(self.a) + np.abs(self.b))

    @property
    def least(self) -> Array:
        """Smallest magnitude of the line, 0 where it may cross zero."""
        return np.asarray(np.maximum(np.abs(self.a) - np.abs(self.b), 0.0))


class Rounded(Line):
    """A line rounded to a format: `source` before it; as an operand of further steps it is the line, less half an ulp."""

    __slots__ = ("fmt", "source")

    def __init__(self, source: Line, fmt: Format) -> None:
        most = source.most + np.abs(source.w)
        half = most * 2.0**-fmt.precision + 2.0 ** (fmt.emin - fmt.precision)
        fits = most <= fmt.max / 2
        super().__init__(source.a, source.b, np.where(fits, source.w - half, -np.inf))
        self.source, self.fmt = source, fmt


def _inner(w: Array) -> Array:
    """The part of w by which the range holds the line."""
    return np.maximum(w, 0.0)


def _off(w: Array) -> Array:
    """The part of w by which the range may miss the line."""
    return np.maximum(-w, 0.0)


class LineReading(Reading):
    """Values are `Line`s.

    Args:
        lines: input operand -> its line; an operand that does not change along a run has b = 0 and w = 0.
    """

    def __init__(
        self,
        contract: Contract,
        profile: Profile,
        depths: Mapping[str, Any] | None,
        lines: Mapping[str, Line],
    ):
        super().__init__(contract, profile, depths)
        self.lines = lines

    def operand(self, kernel: Kernel, case: Case, operand: Operand) -> Line:
        return self.lines[operand.name]

    def load(self, values: Any, *, narrow: bool) -> Line:
        values = np.asarray(values, np.float64)
        zero = np.zeros(values.shape)
        return Line(values, zero, np.where(np.isfinite(values), 0.0, -np.inf))

    def const(self, value: float) -> Line:
        return self.load(value, narrow=True)

    def add(self, a: Line, b: Line) -> Line:
        fuzz = _FUZZ * (a.most + b.most)
        return Line(a.a + b.a, a.b + b.b, a.w + b.w - fuzz)

    def mul(self, a: Line, b: Line) -> Line:
        x, y = a.most, b.most
        # Of a point of either range: the one that moves the product outward, or the one nearest to the line.
        w = _inner(a.w) * b.least + _inner(b.w) * a.least
        w = w - _off(a.w) * y - _off(b.w) * x - np.abs(a.w) * np.abs(b.w)
        # b b' t^2 is what no line has
        w = w - np.abs(a.b) * np.abs(b.b) - _FUZZ * x * y
        return Line(a.a * b.a, a.a * b.b + a.b * b.a, w)

    def div(self, a: Line, b: Line) -> Line:
        with np.errstate(all="ignore"):
            inverse = self._curve(b, _RECIPROCAL)
            return self.mul(a, inverse)

    def neg(self, a: Line) -> Line:
        return Line(-a.a, -a.b, a.w)

    def view(self, a: Line, f: Callable[[Any], Any]) -> Line:
        parts = np.broadcast_arrays(a.a, a.b, a.w)
        return Line(*(f(part) for part in parts))

    def shape_of(self, a: Line) -> tuple[int, ...]:
        return np.broadcast_shapes(a.a.shape, a.b.shape, a.w.shape)

    def _square(self, a: Line) -> Line:
        return self.mul(a, a)

    def _absolute(self, a: Line) -> Line:
        sign = np.copysign(1.0, a.a)
        # beyond zero the magnitudes turn back
        w = np.where(a.least > 0, np.minimum(a.w, a.least), -np.inf)
        return Line(sign * a.a, sign * a.b, w)

    def _extreme(self, a: Line, b: Line, *, largest: bool) -> Line:
        sign = 1.0 if largest else -1.0
        first = sign * a.a >= sign * b.a
        # the end of the hull that is not the chosen line's lies where the other's does
        apart = sign * (a.a - b.a) - np.abs(a.b - b.b)
        back = -sign * (a.a - b.a) - np.abs(a.b - b.b)
        w = np.where(first, np.minimum(a.w, apart + b.w), np.minimum(b.w, back + a.w))
        w = w - _FUZZ * (a.most + b.most)
        return Line(np.where(first, a.a, b.a), np.where(first, a.b, b.b), w)

    def _function(self, name: str, a: Line, ulps: Any) -> Line:
        if name not in _CURVES:
            raise NoLine(name)
        with np.errstate(all="ignore"):
            y = self._curve(a, _CURVES[name])
            # that of a function of the argument counts as none, which is less
            k = 0.0 if callable(ulps) else float(ulps)
            # z - k max(2^-24 |z|, 2^-149) grows with z: what holds at a line's end holds at the range's
            w = y.w + k * np.maximum(_LEAST_ULP * (y.least - np.abs(y.w)), _SMALLEST)
            if functions.get(name).nonnegative:
                w = np.minimum(w, y.least)
        return Line(y.a, y.b, w)

    def _curve(self, x: Line, curve: Curve) -> Line:
        """f(x), linear about each run's middle: |f(a + d) - f(a) - f'(a) d| <= d^2 / 2 max|f''|."""
        reach = np.abs(x.b) + np.abs(x.w)
        low, high = x.a - reach, x.a + reach
        value, slope = curve.value(x.a), curve.slope(x.a)
        bend = curve.bend(low, high)
        span = np.abs(slope) + bend * reach
        w = _inner(x.w) * np.maximum(np.abs(slope) - bend * reach, 0.0) - _off(x.w) * span
        b = slope * x.b
        w = w - 0.5 * bend * np.square(x.b) - _FUNCTION_FUZZ * (np.abs(value) + span * reach)
        # an argument that may be one of the declared points has no ulps there
        sure = (low > curve.domain) & ~np.any([(low <= p) & (high >= p) for p in curve.exact], 0)
        return Line(value, b, np.where(sure & np.isfinite(value + b), w, -np.inf))

    def _round(
        self,
        point: str,
        a: Line,
        fmt: str | None,
        mode: str,
        overflow: str | None,
        infinity: str | None,
    ) -> Line:
        if fmt is None:
            return a
        f = get_format(fmt)
        if mode != "nearest_even" or f.kind != "float":
            raise NoLine(f"rounding {point} to {fmt}, {mode}")
        return Rounded(a, f)

    def _less(self, a: Line, b: Line) -> tuple[Array, Array]:
        apart = b.a - a.a
        near = np.abs(b.b - a.b) + _off(a.w) + _off(b.w) + _FUZZ * (a.most + b.most)
        # what the range cannot decide it joins, so that it holds the branch that is taken here
        return np.asarray(apart > near), np.asarray(apart < -near)

    def _where(self, condition: tuple[Array, Array], a: Line, b: Line) -> Line:
        yes, no = condition
        w = np.where(yes, a.w, np.where(no, b.w, -np.inf))
        return Line(np.where(yes, a.a, b.a), np.where(yes, a.b, b.b), w)

    def _union(self, a: Line, b: Line) -> Line:
        first = a.w >= b.w
        return Line(np.where(first, a.a, b.a), np.where(first, a.b, b.b), np.where(first, a.w, b.w))

    def _fma(self, a: Line, b: Line, c: Line, fused: str) -> Line:
        if fused == "yes":
            raise NoLine("fma, fused alone")
        # 'either' joins the two steps with the one
        return self.add(self.mul(a, b), c)

    # -- steps of several elements, and those that look at bits

    def _reduce_extreme(self, a: Line, axis: int, *, largest: bool) -> NoReturn:
        raise NoLine("an extreme of several elements")

    def _sum(self, a: Line, axis: int, depth: int | None) -> NoReturn:
        raise NoLine("a sum")

    def _variance(self, x: Line, mean: Line, axis: int, depth: int | None) -> NoReturn:
        raise NoLine("a variance")

    def _welford(self, x: Line, axis: int, depth: int | None) -> NoReturn:
        raise NoLine("moments")

    def _folded(self, x: Line, mean: Line, scale: Line) -> NoReturn:
        raise NoLine("a folded difference")

    def _concat(self, parts: list[Line], axis: int) -> NoReturn:
        raise NoLine("a concatenation")

    def _dot(self, a: Line, b: Line, order: Any, acc: Any, start: Any) -> NoReturn:
        raise NoLine("a product of matrices")

    def _softmax_av(self, s: Line, v: Line, mask: Any, spec: Any) -> NoReturn:
        raise NoLine("a softmax")

    def _known(self, mask: Line) -> NoReturn:
        raise NoLine("a mask")

    def _integers(self, values: Line) -> NoReturn:
        raise NoLine("integers")

    def _exactly(self, values: Array) -> NoReturn:
        raise NoLine("numbers that are known")

    def _pick_max(self, values: Line, axis: int, nan: str) -> NoReturn:
        raise NoLine("a pick")

    def _one_of(self, parts: list[Line]) -> NoReturn:
        raise NoLine("one of few values")


class Curve:
    """A monotone function with what a line needs of it.

    Args:
        value, slope: f and its derivative at an argument.
        bend: low, high -> bound of |f''| between them.
        exact: arguments at which every implementation must give the value itself.
        domain: arguments lie above it.
    """

    def __init__(
        self,
        value: Callable[[Array], Array],
        slope: Callable[[Array], Array],
        bend: Callable[[Array, Array], Array],
        exact: tuple[float, ...] = (0.0,),
        domain: float = -np.inf,
    ) -> None:
        self.value, self.slope, self.bend = value, slope, bend
        self.exact, self.domain = exact, domain


def _near_far(low: Array, high: Array) -> tuple[Array, Array]:
    """Smallest and largest magnitude between two ends."""
    near = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    return near, np.maximum(np.abs(low), np.abs(high))


def _tanh_slope(x: Array) -> Array:
    return np.asarray(1.0 / np.square(np.cosh(x)))


def _tanh_bend(low: Array, high: Array) -> Array:
    near, far = _near_far(low, high)
    # |f''| = 2 |tanh| / cosh^2
    return np.asarray(2.0 * np.minimum(far, 1.0) * _tanh_slope(near))


_TWO_OVER_ROOT_PI = float.fromhex("0x1.20dd750429b6dp+0")


def _erf_slope(x: Array) -> Array:
    return np.asarray(_TWO_OVER_ROOT_PI * np.exp(-np.square(x)))


def _erf_bend(low: Array, high: Array) -> Array:
    near, far = _near_far(low, high)
    # |f''| = 2 |x| f'
    return np.asarray(2.0 * far * _erf_slope(near))


_RECIPROCAL = Curve(
    lambda x: np.asarray(1.0 / x),
    lambda x: np.asarray(-1.0 / np.square(x)),
    lambda low, high: np.asarray(2.0 / _near_far(low, high)[0] ** 3),
)
_CURVES: dict[str, Curve] = {
    "exp": Curve(functions.get("exp").value, np.exp, lambda low, high: np.exp(high)),
    "tanh": Curve(functions.get("tanh").value, _tanh_slope, _tanh_bend),
    "erf": Curve(functions.get("erf").value, _erf_slope, _erf_bend),
    "log": Curve(
        functions.get("log").value,
        lambda x: np.asarray(1.0 / x),
        lambda low, high: np.asarray(1.0 / np.square(low)),
        exact=(1.0,),
        domain=0.0,
    ),
    "log1p": Curve(
        functions.get("log1p").value,
        lambda x: np.asarray(1.0 / (1.0 + x)),
        lambda low, high: np.asarray(1.0 / np.square(1.0 + low)),
        domain=-1.0,
    ),
    "sqrt": Curve(
        functions.get("sqrt").value,
        lambda x: np.asarray(0.5 / np.sqrt(x)),
        lambda low, high: np.asarray(0.25 * low**-1.5),
        domain=0.0,
    ),
    "rsqrt": Curve(
        functions.get("rsqrt").value,
        lambda x: np.asarray(-0.5 * x**-1.5),
        lambda low, high: np.asarray(0.75 * low**-2.5),
        domain=0.0,
    ),
}

__all__ = ["Line", "LineReading", "NoLine", "Rounded"]
