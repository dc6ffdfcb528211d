"""The language of references: values with operators, and the steps that a reading must give meaning to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.case import Case, Kernel
from contract.declare import Contract, Operand, Profile
from contract.errors import DeclarationError
from contract.readings.structured import Structured


@dataclass(frozen=True)
class Change:
    """A fault of a reading: points not rounded, truncated, or rounded half away."""

    drop: frozenset[str] = frozenset()
    modes: Mapping[str, str] = field(default_factory=dict)


class Quantity:
    """A value in a reading. Operators are unnamed fp32 steps; `r.round` makes a named one."""

    __slots__ = ("r", "v")
    __array_ufunc__ = None

    def __init__(self, r: Reading, v: Any):
        self.r, self.v = r, v

    def __add__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.add(self.v, self.r.lift(other)))

    def __radd__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.add(self.r.lift(other), self.v))

    def __sub__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.add(self.v, self.r.neg(self.r.lift(other))))

    def __rsub__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.add(self.r.lift(other), self.r.neg(self.v)))

    def __mul__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.mul(self.v, self.r.lift(other)))

    def __rmul__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.mul(self.r.lift(other), self.v))

    def __truediv__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.div(self.v, self.r.lift(other)))

    def __rtruediv__(self, other: Any) -> Quantity:
        return Quantity(self.r, self.r.div(self.r.lift(other), self.v))

    def __neg__(self) -> Quantity:
        return Quantity(self.r, self.r.neg(self.v))

    def __getitem__(self, index: Any) -> Quantity:
        return Quantity(self.r, self.r.view(self.v, lambda a: a[index]))

    def __bool__(self) -> bool:
        raise DeclarationError(
            "a reference cannot branch on a value; use r.where(r.less(a, b), x, y)"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.r.shape_of(self.v)

    def reshape(self, *shape: int) -> Quantity:
        return Quantity(self.r, self.r.view(self.v, lambda a: a.reshape(shape)))

    def swapaxes(self, a: int, b: int) -> Quantity:
        return Quantity(self.r, self.r.view(self.v, lambda x: x.swapaxes(a, b)))


class Reading(Structured):
    """What every reading offers a reference. Methods with Quantity arguments are the public ones.

    Args:
        contract, profile: whose points, options and formats are read.
        depths: freedom -> depth, an implementation's tighter declaration.
    """

    def __init__(
        self, contract: Contract, profile: Profile, depths: Mapping[str, int] | None = None
    ):
        self.contract, self.profile, self.depths = contract, profile, dict(depths or {})
        self.used: dict[str, str] = {}
        self.points_seen: list[str] = []
        # stage -> its value as the contract computes it, the points only it shows, and the bits an implementation gave
        self.stages: dict[str, Any] = {}
        self.stage_points: dict[str, tuple[str, ...]] = {}
        self.stage_pieces: dict[str, tuple[int, list[Any]]] = {}
        self.observed_values: dict[str, Any] = {}
        self.shared_values: dict[str, tuple[Any, int]] = {}
        self.pins: dict[str, Any] = {}

    def operand(self, kernel: Kernel, case: Case, operand: Operand) -> Any:
        """An input operand of a case."""
        return self.load(case.value(kernel, operand), narrow=kernel.format(operand).within_fp32)

    # -- what each reading gives meaning to (payloads, not Quantities)
    @abstractmethod
    def load(self, values: Any, *, narrow: bool) -> Any: ...
    @abstractmethod
    def const(self, value: float) -> Any: ...
    @abstractmethod
    def add(self, a: Any, b: Any) -> Any: ...
    @abstractmethod
    def mul(self, a: Any, b: Any) -> Any: ...
    @abstractmethod
    def div(self, a: Any, b: Any) -> Any: ...
    @abstractmethod
    def neg(self, a: Any) -> Any: ...
    @abstractmethod
    def view(self, a: Any, f: Callable[[Any], Any]) -> Any: ...
    @abstractmethod
    def shape_of(self, a: Any) -> tuple[int, ...]: ...
    def _observed(self, name: str, value: Any) -> Any:
        return self.observed_values.get(name, value)

    def _pinned(self, name: str, value: Any) -> Any:
        return self.pins[name](value) if name in self.pins else value

    @abstractmethod
    def _square(self, a: Any) -> Any: ...
    @abstractmethod
    def _absolute(self, a: Any) -> Any: ...
    @abstractmethod
    def _extreme(self, a: Any, b: Any, *, largest: bool) -> Any: ...
    @abstractmethod
    def _reduce_extreme(self, a: Any, axis: int, *, largest: bool) -> Any: ...
    @abstractmethod
    def _sum(self, a: Any, axis: int, depth: int | None) -> Any: ...
    @abstractmethod
    def _variance(self, x: Any, mean: Any, axis: int, depth: int | None) -> Any: ...
    @abstractmethod
    def _welford(self, x: Any, axis: int, depth: int | None) -> tuple[Any, Any]: ...
    @abstractmethod
    def _folded(self, x: Any, mean: Any, scale: Any) -> Any: ...
    @abstractmethod
    def _function(self, name: str, a: Any, ulps: Any) -> Any: ...
    @abstractmethod
    def _round(
        self,
        point: str,
        a: Any,
        fmt: str | None,
        mode: str,
        overflow: str | None,
        infinity: str | None,
    ) -> Any: ...
    @abstractmethod
    def _less(self, a: Any, b: Any) -> Any: ...
    @abstractmethod
    def _where(self, condition: Any, a: Any, b: Any) -> Any: ...
    @abstractmethod
    def _union(self, a: Any, b: Any) -> Any: ...
    @abstractmethod
    def _fma(self, a: Any, b: Any, c: Any, fused: str) -> Any: ...
    @abstractmethod
    def _concat(self, parts: list[Any], axis: int) -> Any: ...

    def lift(self, x: Any) -> Any:
        """The payload of a Quantity or of a Python number."""
        if isinstance(x, Quantity):
            return x.v
        if isinstance(x, (int, float)):
            return self.const(float(x))
        raise DeclarationError(
            f"a reference computed with {type(x).__name__} {x!r}; use its inputs, numbers and r"
        )

    def wrap(self, v: Any) -> Quantity:
        return Quantity(self, v)

    def _use(self, freedom: str, bound: str) -> None:
        self.used.setdefault(freedom, bound)
        if freedom not in self.contract.freedoms:
            raise DeclarationError(
                f"contract {self.contract.name}: the reference uses freedom {freedom!r} ({bound}) without a source;"
                f" add it to freedoms={{...}}"
            )

    def depth(self, freedom: str, depth: int | None) -> int | None:
        """The declared depth of a sum: the implementation's own where it is tighter than the contract's."""
        own: Any = self.depths.get(freedom)
        if type(own) is not int:
            return depth
        return own if depth is None else min(own, depth)

    # -- steps
    def round(
        self, point: str, x: Quantity, *, mode: str = "nearest_even", infinity: str | None = None
    ) -> Quantity:
        """The named rounding point: x rounded once to the profile's format, or x itself where the profile keeps it."""
        if point not in self.profile.points:
            raise DeclarationError(
                f"contract {self.contract.name}: rounding point {point!r} is not in profile {self.profile.name};"
                f" points are {list(self.profile.points)}"
            )
        if point not in self.points_seen:
            self.points_seen.append(point)
        fmt = self.profile.points[point]
        mode = self.profile.modes.get(point, mode)
        return self.wrap(
            self._round(point, x.v, fmt, mode, self.profile.overflow.get(point), infinity)
        )

    def square(self, x: Quantity) -> Quantity:
        """x^2, one step; never negative."""
        return self.wrap(self._square(x.v))

    def abs(self, x: Quantity) -> Quantity:
        return self.wrap(self._absolute(x.v))

    def maximum(self, a: Quantity, b: Any) -> Quantity:
        return self.wrap(self._extreme(a.v, self.lift(b), largest=True))

    def minimum(self, a: Quantity, b: Any) -> Quantity:
        return self.wrap(self._extreme(a.v, self.lift(b), largest=False))

    def max(self, x: Quantity, axis: int = -1) -> Quantity:
        """Largest value along the axis (kept with size 1); NaN if any is."""
        return self.wrap(self._reduce_extreme(x.v, axis, largest=True))

    def min(self, x: Quantity, axis: int = -1) -> Quantity:
        return self.wrap(self._reduce_extreme(x.v, axis, largest=False))

    def sum(
        self, x: Quantity, axis: int = -1, *, depth: int | None = None, name: str = "sum"
    ) -> Quantity:
        """Sum along the axis (kept with size 1): any order through which no term makes more than `depth` additions."""
        self._use(name, "sum: any order" if depth is None else f"sum: depth {depth}")
        if name in self.profile.orders:
            from contract.products import tree_sum

            return self.wrap(tree_sum(self, x.v, axis, self.profile.orders[name]))
        return self.wrap(self._sum(x.v, axis, self.depth(name, depth)))

    def mean(
        self, x: Quantity, axis: int = -1, *, depth: int | None = None, name: str = "mean"
    ) -> Quantity:
        """Sum divided by the count, or multiplied by its reciprocal (a freedom: both are joined)."""
        total = self.sum(x, axis, depth=depth, name=name)
        n = x.shape[axis]
        if n & (n - 1) == 0:
            return total * (1.0 / n)
        return self.wrap(self._union((total / float(n)).v, (total * self.reciprocal(n)).v))

    def reciprocal(self, n: int) -> Quantity:
        """1 / n as an fp32 or wider constant."""
        return self.wrap(self.div(self.const(1.0), self.const(float(n))))

    def variance(
        self,
        x: Quantity,
        mean: Quantity,
        axis: int = -1,
        *,
        depth: int | None = None,
        name: str = "variance",
    ) -> Quantity:
        """Two-pass variance: mean of (x - mean)^2."""
        self._use(name, "two-pass variance: any order")
        return self.wrap(self._variance(x.v, mean.v, axis, self.depth(name, depth)))

    def welford(
        self, x: Quantity, axis: int = -1, *, depth: int | None = None, name: str = "welford"
    ) -> tuple[Quantity, Quantity]:
        """Mean and variance of an operand from moments merged in any order (Welford, Chan)."""
        self._use(name, "merged moments: any order" if depth is None else f"merges: depth {depth}")
        mean, variance = self._welford(x.v, axis, self.depth(name, depth))
        return self.wrap(mean), self.wrap(variance)

    def folded(self, x: Quantity, mean: Quantity, scale: Quantity) -> Quantity:
        """x s - m s, the offset m s formed first: it is within u (|x| + |m|) |s| of (x - m) s, before its own rounding."""
        return self.wrap(self._folded(x.v, mean.v, scale.v))

    def function(self, f: str, x: Quantity, *, ulps: Any, name: str = "") -> Quantity:
        """A function of FUNCTIONS within `ulps` fp32 ulps of the true value's binade."""
        self._use(name or f, f"{f}: {ulps} ulps")
        return self.wrap(self._function(f, x.v, ulps))

    def exp(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("exp", x, ulps=ulps)

    def tanh(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("tanh", x, ulps=ulps)

    def erf(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("erf", x, ulps=ulps)

    def rsqrt(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("rsqrt", x, ulps=ulps)

    def sqrt(self, x: Quantity, *, ulps: Any = 1) -> Quantity:
        return self.function("sqrt", x, ulps=ulps)

    def sigmoid(self, x: Quantity) -> Quantity:
        """1 / (1 + exp(-x)): built from exp, sum and division, no ulps of its own."""
        return 1.0 / (1.0 + self.exp(-x))

    def silu(self, x: Quantity) -> Quantity:
        """x / (1 + exp(-x)), or x times the sigmoid: both are joined."""
        below = 1.0 + self.exp(-x)
        return self.wrap(self._union((x / below).v, (x * (1.0 / below)).v))

    def fma(self, a: Quantity, b: Any, c: Any, *, fused: str = "either") -> Quantity:
        """a b + c with one rounding ('yes'), two ('no'), or either."""
        if fused not in ("yes", "no", "either"):
            raise DeclarationError(f"fma(fused={fused!r}); use 'yes', 'no' or 'either'")
        return self.wrap(self._fma(a.v, self.lift(b), self.lift(c), fused))

    def less(self, a: Quantity, b: Any) -> Any:
        """a < b, decided, or undecided where the ranges overlap; only for r.where."""
        return self._less(a.v, self.lift(b))

    def where(self, condition: Any, a: Quantity, b: Any) -> Quantity:
        """a where the condition holds, else b; both joined where it is undecided."""
        return self.wrap(self._where(condition, a.v, self.lift(b)))

    def union(self, a: Quantity, b: Quantity) -> Quantity:
        """Either of two ways to compute one value, chosen per element."""
        return self.wrap(self._union(a.v, b.v))

    def concat(self, parts: list[Quantity], axis: int = -1) -> Quantity:
        return self.wrap(self._concat([p.v for p in parts], axis))
