"""Steps of references with a declared structure: products, attention, stages, picks, and the functions behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from contract.attention import FINAL, Gauge, Softmax
from contract.errors import DeclarationError
from contract.orders import Accumulator, AnyOrder, Chunks, Mma, Order, Tree, accumulator

if TYPE_CHECKING:
    from contract.declare import Contract, Profile
    from contract.readings.base import Quantity


class Structured(ABC):
    """The part of a reading that `Reading` inherits; split off for length alone."""

    contract: Contract
    profile: Profile
    depths: dict[str, Any]
    points_seen: list[str]
    stages: dict[str, Any]
    stage_points: dict[str, tuple[str, ...]]
    stage_pieces: dict[str, tuple[int, list[Any]]]
    shared_values: dict[str, tuple[Any, int]]
    observed_values: dict[str, Any]

    @abstractmethod
    def wrap(self, v: Any) -> Quantity: ...
    @abstractmethod
    def _use(self, freedom: str, bound: str) -> None: ...
    @abstractmethod
    def function(self, f: str, x: Quantity, *, ulps: Any, name: str = "") -> Quantity: ...
    @abstractmethod
    def round(self, point: str, x: Quantity) -> Quantity: ...
    @abstractmethod
    def concat(self, parts: list[Quantity], axis: int = -1) -> Quantity: ...
    @abstractmethod
    def where(self, condition: Any, a: Quantity, b: Any) -> Quantity: ...
    @abstractmethod
    def less(self, a: Quantity, b: Any) -> Any: ...
    @abstractmethod
    def _dot(self, a: Any, b: Any, order: Any, acc: Accumulator, start: Any) -> Any: ...
    @abstractmethod
    def _softmax_av(self, s: Any, v: Any, mask: Any, spec: Softmax) -> tuple[Any, Any]: ...
    @abstractmethod
    def _known(self, mask: Any) -> Any: ...
    @abstractmethod
    def _observed(self, name: str, value: Any) -> Any: ...
    @abstractmethod
    def _pinned(self, name: str, value: Any) -> Any: ...
    @abstractmethod
    def view(self, a: Any, f: Callable[[Any], Any]) -> Any: ...
    @abstractmethod
    def _integers(self, values: Any) -> Any: ...
    @abstractmethod
    def _exactly(self, values: Any) -> Any: ...
    @abstractmethod
    def _concat(self, parts: list[Any], axis: int) -> Any: ...
    @abstractmethod
    def _pick_max(self, values: Any, axis: int, nan: str) -> Any: ...
    @abstractmethod
    def _one_of(self, parts: list[Any]) -> Any: ...

    # -- known numbers
    def integers(self, x: Quantity) -> Any:
        """The values of an integer operand as an int64 array, to index with, to mask with, or to unpack.

        Known in every reading, so that what is computed from them in NumPy's integers is exact; `exactly` leads back.

        Raises:
            DeclarationError: a value that is not known, or is no integer (NaN included).
        """
        return self._integers(x.v)

    def exactly(self, values: Any) -> Quantity:
        """Numbers that are known exactly: an integer array (to 63 bits), or float64 values that are no roundings."""
        return self.wrap(self._exactly(np.asarray(values)))

    def converted(self, x: Quantity) -> Quantity:
        """An int32 sum as the fp32 number that the next step reads: rounded where it has more than 24 bits, or kept."""
        return x + 0.0

    def take(self, table: Quantity, index: Any, axis: int = 0) -> Quantity:
        """The entries of `table` along an axis at an integer array (`integers`); moves bits, computes nothing."""
        chosen = np.asarray(index)
        return self.wrap(self.view(table.v, lambda a: np.take(a, chosen, axis=axis)))

    # -- products
    def dot(
        self,
        a: Quantity,
        b: Quantity,
        *,
        order: Order | None = None,
        depth: int | None = None,
        accumulator: str = "fp32",
        start: Quantity | None = None,
        name: str = "dot",
    ) -> Quantity:
        """start + a @ b: a (..., M, K), b (..., K, N) -> (..., M, N), in the declared order; see `contract.products`.

        Args:
            order: Chunks, Mma or Tree; any order of at most `depth` additions a term where None.
            accumulator: fp32, fp16, bf16, wN, or int32 (integer codes: exact below 2^31).
            start: what the sum begins with (a bias, the accumulator of a previous step).
        """
        if order is not None and depth is not None:
            raise DeclarationError(f"dot {name!r}: the depth of {order} belongs inside it")
        declared = self.profile.orders.get(name) or self.depths.get(name)
        chosen = declared_order(declared, order or AnyOrder(depth))
        self._use(name, f"dot: {_bound(order or AnyOrder(depth))}")
        acc = _accumulator(accumulator)
        begin = None if start is None else start.v
        if isinstance(chosen, Tree):
            from contract.products import tree_dot

            return self.wrap(tree_dot(self, a.v, b.v, chosen, begin))
        return self.wrap(self._dot(a.v, b.v, chosen, acc, begin))

    def softmax_av(
        self,
        scores: Quantity,
        v: Quantity,
        *,
        mask: Any = None,
        point: str | None = None,
        low: str | None = None,
        depth: int | None = None,
        merges: int | None = None,
        gauge: Gauge = FINAL,
        ulps: float = 2,
        sums: str = "unrounded",
        empty: str = "zeros",
        approximate: float = 0.0,
        name: str = "softmax_av",
    ) -> tuple[Quantity, Quantity]:
        """Softmax-weighted sums of v and the log-sum-exp of the scores; see `contract.attention`.

        Args:
            scores: (..., Q, K); v: (..., K, D); mask: True where live, an array or a 0/1 operand, (..., Q, K).
            point: the rounding point of the weights, against the maximum that `gauge` names; None: none.
            low: the rounding point of what `point` left over, which meets v as well (two halves); None: nothing is kept.
            depth, merges: most additions and rescalings a term goes through.
            sums: whether the sum of weights takes 'rounded' or 'unrounded' ones.
            empty: 'zeros', 'nan' or 'mean', the row without a live key.
            approximate: relative error of the weights' exponential, beyond its ulps.
        """
        self._use(name, f"softmax: exp {ulps} ulps, sums of any order to depth {depth}")
        p_format, mode = (None, "nearest_even") if point is None else self._weight_format(point)
        rest = (None, "nearest_even") if low is None else self._weight_format(low)
        if low is not None and rest[0] is None:
            # what is left over is not rounded: nor is the weight
            p_format = None
        spec = Softmax(depth, merges, gauge, p_format, mode, *rest, ulps, sums, empty, approximate)
        spec = declared_softmax(self.depths.get(name), spec)
        live = self._known(mask.v) if hasattr(mask, "v") else mask
        o, lse = self._softmax_av(scores.v, v.v, live, spec)
        return self.wrap(o), self.wrap(lse)

    def _weight_format(self, point: str) -> tuple[str | None, str]:
        if point not in self.profile.points:
            raise DeclarationError(
                f"contract {self.contract.name}: rounding point {point!r} is not in profile {self.profile.name};"
                f" points are {list(self.profile.points)}"
            )
        if point not in self.points_seen:
            self.points_seen.append(point)
        change = getattr(self, "change", None)
        if change is not None and point in change.drop:
            return None, "nearest_even"
        mode = self.profile.modes.get(point, "nearest_even")
        mode = mode if change is None else change.modes.get(point, mode)
        return self.profile.points[point], str(mode)

    def solve(
        self, stage: str, lower: Quantity, rhs: Quantity, *, point: str, name: str = "solve"
    ) -> Quantity:
        """X of (I + L) X = B by substitution, the stage output `stage`; each row is rounded at `point`.

        x_i = b_i - sum_{j < i} l_ij x_j, the sum in any order. Where X is observed, every row is judged from the rows
        before it as they were given: that is the residual of X, which does not grow with the condition of I + L as a
        forward range does (contract.solve). Inverses that are multiplied are not covered.

        Args:
            lower: (..., C, C), zero on and above the diagonal; rhs: (..., C, N).
        """
        seen = self.observed_values.get(stage)
        if seen is not None:
            rows = self.dot(-lower, self.wrap(seen), start=rhs, name=name)
            return self.observed(stage, self.round(point, rows))
        solved = self.round(point, rhs[..., :1, :])
        for i in range(1, rhs.shape[-2]):
            left, begin = -lower[..., i : i + 1, :i], rhs[..., i : i + 1, :]
            row = self.round(point, self.dot(left, solved, start=begin, name=name))
            solved = self.concat([solved, row], -2)
        return self.observed(stage, solved)

    # -- stages
    def observed(self, name: str, value: Quantity, *, along: int | None = None) -> Quantity:
        """The stage output `name`: its range is recorded, and what follows starts from the observed bits where the
        implementation exposes them.

        `along`: the value is the next piece of the stage along this axis (from the end), as of a loop whose every step
        is judged from what the steps before it gave.
        """
        if name not in [o.name for o in self.contract.outputs() if o.stage or o.observed]:
            raise DeclarationError(
                f"contract {self.contract.name}: {name!r} is no stage; declare output({name!r}, ..., stage=True), or"
                " observed=True where it may not be left out"
            )
        earlier = {p for points in self.stage_points.values() for p in points}
        new = tuple(p for p in self.points_seen if p not in earlier)
        self.stage_points[name] = self.stage_points.get(name, ()) + new
        if along is None:
            self.stages[name] = value.v
            return self.wrap(self._observed(name, value.v))
        if along >= 0:
            raise DeclarationError(
                f"observed({name!r}, along={along}); count axes from the end: -1, -2, ..."
            )
        pieces = self.stage_pieces.setdefault(name, (along, []))[1]
        pieces.append(value.v)
        if name not in self.observed_values:
            return value
        first = sum(self.wrap(piece).shape[along] for piece in pieces[:-1])
        here = slice(first, first + value.shape[along])
        at = (..., here, *(slice(None),) * (-along - 1))
        return self.wrap(self.view(self.observed_values[name], lambda a: a[at]))

    def whole_stages(self) -> dict[str, Any]:
        """Every stage as the contract computes it, pieces put together."""
        whole = {n: self._concat(parts, axis) for n, (axis, parts) in self.stage_pieces.items()}
        return self.stages | whole

    def shared(self, name: str, value: Quantity, axis: int = -1) -> Quantity:
        """One value that serves a row along `axis`: one fp32 candidate of it must explain the whole row."""
        self.shared_values[name] = (value.v, axis)
        return self.wrap(self._pinned(name, value.v))

    # -- sets
    def pick_max(self, values: Quantity, axis: int = -1, *, nan: str = "first") -> Quantity:
        """Index of the largest value along the axis (which goes), the lowest index where values are equal.

        `nan`: 'first', a NaN is the largest value; 'ignore', it is never picked unless all are NaN.
        """
        if nan not in ("first", "ignore"):
            raise DeclarationError(f"pick_max(nan={nan!r}); use 'first' or 'ignore'")
        return self.wrap(self._pick_max(values.v, axis, nan))

    def one_of(self, *parts: Quantity) -> Quantity:
        """Any one of a few results, and nothing between them."""
        return self.wrap(self._one_of([p.v for p in parts]))

    # -- functions
    def cos(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("cos", x, ulps=ulps)

    def sin(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("sin", x, ulps=ulps)

    def log(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("log", x, ulps=ulps)

    def log1p(self, x: Quantity, *, ulps: Any = 2) -> Quantity:
        return self.function("log1p", x, ulps=ulps)

    def softplus(self, x: Quantity, *, threshold: float = 20.0, ulps: Any = 2) -> Quantity:
        """log(1 + exp(x)), and x itself above the threshold."""
        below = self.log1p(self.function("exp", x, ulps=ulps), ulps=ulps)
        return self.where(self.less(self.wrap(x.r.lift(threshold)), x), x, below)


def whole_numbers(values: Any) -> Any:
    """Float64 values as int64.

    Raises:
        DeclarationError: a value that is no integer of at most 2^53.
    """
    a = np.asarray(values, np.float64)
    # a NaN is not at most anything
    wrong = ~(np.abs(a) <= 2.0**53) | (np.rint(a) != a)
    if wrong.any():
        raise DeclarationError(
            f"a reference took {float(a[wrong].ravel()[0])!r} for an integer; r.integers reads operands of integer formats"
        )
    return a.astype(np.int64)


def declared_order(declared: Any, order: Order) -> Order:
    """An implementation's own order: a depth, or an order that replaces the contract's."""
    if declared is None:
        return order
    if isinstance(declared, (AnyOrder, Chunks, Mma, Tree)):
        return declared
    if isinstance(declared, int) and isinstance(order, AnyOrder):
        return AnyOrder(declared)
    raise DeclarationError(f"order {declared!r} in place of {order}; use a depth or an order")


def declared_softmax(declared: Any, spec: Softmax) -> Softmax:
    """An implementation's own depth, gauge or whole specification."""
    from dataclasses import replace

    if declared is None:
        return spec
    if isinstance(declared, int):
        return replace(spec, depth=declared)
    if isinstance(declared, Gauge):
        return replace(spec, gauge=declared)
    if isinstance(declared, Softmax):
        rounding = {
            name: getattr(spec, name) for name in ("p_format", "p_mode", "low_format", "low_mode")
        }
        return replace(declared, **rounding)
    raise DeclarationError(f"order {declared!r} of a softmax; use a depth, a Gauge or a Softmax")


def _bound(order: Order) -> str:
    if isinstance(order, AnyOrder):
        return "any order" if order.depth is None else f"depth {order.depth}"
    return str(order)


_accumulator = accumulator
