"""Steps put off until their ends are asked for: a rounding to few bits right behind one needs them at few elements.

The ends of a step on one-value operands lie within a known relative distance of its float64 result, 2^-23 or so. A
rounding of that result to bf16 is the rounding of both ends, but where a tie of bf16 lies between them: one element in
thousands. Only those, and the elements whose operands were ranges, go through the step itself (`contract.interval`,
`contract.functions`), so that what is allowed is decided there as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from contract.endpoints import BIG, TINY, Array, Interval, Span, calm_span, tamed
from contract.formats import Format, round_normal

# Elements from which it pays.
_LEAST_SIZE = 1 << 12
# Rows' factors are an eighth of the elements at most, and no wider than this, relative to themselves.
_FEW = 8
_WIDEST = 2.0**-12
# What settling a step moves its ends by: half an fp32 ulp and float64's own errors.
_SETTLED = 2.0**-23
# Part of the distance between ties up to which a margin on either side of them leaves few elements.
_SPARSE = 2.0**-4


class Deferred(Interval):
    """A step whose ends are computed when one of the interval's attributes is read."""

    __slots__ = ("bounds", "center", "exact", "operands", "slack", "step")

    def __init__(
        self,
        step: Callable[..., Interval],
        operands: tuple[Interval, ...],
        center: Callable[..., Array],
        slack: float,
        bounds: Span | None,
        exact: Callable[..., Array] | None,
    ):
        # the attributes of an interval stay unset
        self.step, self.operands, self.center, self.slack = step, operands, center, slack
        self.bounds, self.exact = bounds, exact

    def __getattr__(self, name: str) -> object:
        if name not in Interval.__slots__ or not self.operands:
            raise AttributeError(name)
        whole = self.step(*self.operands)
        self.operands = ()
        for slot in Interval.__slots__:
            setattr(self, slot, getattr(whole, slot))
        return getattr(self, name)


class Sparse(Interval):
    """One value each and calm, but for a few: `tops` are the upper ends at the flat indices `spots`.

    `rest` bounds the magnitudes outside the spots.
    """

    __slots__ = ("rest", "single", "spots", "tops")

    def __init__(self, lo: Array, spots: Array, tops: Array, rest: Span):
        self.lo, self.spots, self.tops, self.rest = lo, spots, tops, rest
        self.nan, self.narrow, self.raw = None, True, False
        # spots of one value each are there because they are not calm
        self.single = _equal(lo.reshape(-1)[spots], tops).all()

    def __getattr__(self, name: str) -> object:
        if name != "hi":
            raise AttributeError(name)
        self.hi = self.lo
        if not self.single:
            self.hi = self.lo.copy()
            self.hi.reshape(-1)[self.spots] = self.tops
        return self.hi

    @property
    def same(self) -> bool:
        """Whether every element is one value; upper ends are not built for that."""
        return bool(self.single)

    def tops_at(self, index: Array) -> Array:
        """Upper ends at flat indices."""
        found = self.lo.reshape(-1)[index]
        place = np.minimum(np.searchsorted(self.spots, index), self.spots.size - 1)
        return np.where(self.spots[place] == index, self.tops[place], found)


def deferred(
    step: Callable[..., Interval],
    center: Callable[..., Array],
    *operands: Interval,
    slack: float = _SETTLED,
    factors: bool = False,
    bounds: Callable[..., Span] | None = None,
    exact: Callable[..., Array] | None = None,
) -> Interval:
    """The step, put off where its operands allow it.

    Args:
        step: operands -> interval, element by element.
        center: the operands' values -> float64 result.
        slack: both ends lie within that of the result, relative to it, where the operands are one value each.
        factors: the step multiplies or divides, so that a factor's relative width is the result's.
        bounds: the operands' spans -> the result's, before it is settled; looked up where None, or where it is not calm.
        exact: operands' values and results -> whether float64 holds each result: one that is an fp32 value, too, is what
            the step gives.
    """
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    size = math.prod(shape)
    if size < _LEAST_SIZE:
        return step(*operands)
    spans = []
    for x in operands:
        span = x.rest if isinstance(x, Sparse) else x.span
        # spots are places in the result only where its shape is theirs
        spread = isinstance(x, Sparse) and x.shape != shape
        if x.nan is not None or x.raw or span is None or spread:
            return step(*operands)
        spans.append(span)
        if not x.same and not isinstance(x, Sparse):
            width = _width(x) if factors and _FEW * x.lo.size <= size else 1.0
            if not width <= _WIDEST:
                return step(*operands)
            # to either side of its middle
            slack += width * (0.5 + _WIDEST)
    known = None if bounds is None else calm_span(bounds(*spans))
    return Deferred(step, operands, center, slack, known, exact)


def _width(x: Interval) -> float:
    """Largest relative width of an interval whose ends are calm."""
    return float(((x.hi - x.lo) / np.minimum(np.abs(x.lo), np.abs(x.hi))).max())


def rounded_near(
    x: Interval, f: Format, round_ends: Callable[[Interval], Interval]
) -> Interval | None:
    """The interval rounded to nearest even, where it was put off and most elements are calm and lie far from a tie.

    `round_ends` rounds the others, from their ends. None: all are to be rounded so.
    """
    if not isinstance(x, Deferred) or not x.operands:
        return None
    # in units of the center's last place, or of the next lower binade's where an end lies there
    margin = int(x.slack * (2.0**53 + 2.0**43)) + 2 if x.slack else 0
    tie = 1 << (52 - f.mantissa_bits)
    if margin > tie * _SPARSE:
        return None
    with np.errstate(all="ignore"):
        values = [_middle(y) for y in x.operands]
        center = np.asarray(x.center(*values), order="C")
        parts = [y.spots for y in x.operands if isinstance(y, Sparse)]
        span = x.bounds
        if span is None:
            span, odd = _calm_elsewhere(center)
            parts.append(odd)
        if margin:
            exact = None if x.exact is None else partial(x.exact, *values, center)
            parts.append(_near_ties(center, tie, margin, exact))
    if span is None or sum(part.size for part in parts) > center.size // _FEW:
        return None
    index = _union(parts, center.size)
    # rounding moves an end by half an ulp at most, settling and a factor's width by less
    span = calm_span((span[0] * (1 - 2 * f.u), span[1] * (1 + 2 * f.u)))
    if span is None:
        return None
    # nothing else holds the center
    lo = round_normal(center, f, out=center)
    if not index.size:
        return tamed(Interval(lo, lo, narrow=True), span, f.precision)
    ends = round_ends(x.step(*(_taken(y, index, center.shape) for y in x.operands)))
    if ends.nan is not None or ends.raw:
        return None
    lo.reshape(-1)[index] = ends.lo
    calm = ends.span is not None
    keep = ~_is_calm(ends.lo) | ~_is_calm(ends.hi) if not calm else np.zeros(index.size, bool)
    keep |= ~_equal(ends.lo, ends.hi)
    # the center says nothing of an element that was not calm before it was rounded, or had a range for an operand
    rest = _joined(span, np.abs(ends.lo[~keep]))
    if not keep.any():
        return tamed(Interval(lo, lo, narrow=True), rest, f.precision)
    result = Sparse(lo, index[keep], ends.hi[keep], rest)
    both = np.abs(np.concatenate((ends.lo[keep], ends.hi[keep])))
    return tamed(result, _joined(rest, both) if calm else None, f.precision)


def _joined(span: Span, magnitudes: Array) -> Span:
    """The span widened to hold these magnitudes, too."""
    if not magnitudes.size:
        return span
    return min(span[0], float(magnitudes.min())), max(span[1], float(magnitudes.max()))


def _equal(a: Array, b: Array) -> Array:
    """Where two arrays have the same bits."""
    return np.asarray(
        np.ascontiguousarray(a).view(np.int64) == np.ascontiguousarray(b).view(np.int64)
    )


def _calm_elsewhere(center: Array) -> tuple[Span | None, Array]:
    """Bounds of the calm magnitudes, and flat indices of the elements that are not calm."""
    size = np.abs(center).reshape(-1)
    span = calm_span((float(size.min()), float(size.max())))
    if span is not None:
        return span, _NONE
    odd = np.flatnonzero(~_is_calm(size))
    size[odd] = 1.0
    return calm_span((float(size.min()), float(size.max()))), odd


def _is_calm(z: Array) -> Array:
    size = np.abs(z)
    return np.asarray((size >= TINY * 4) & (size <= BIG))


_NONE = np.empty(0, np.int64)


def _union(parts: Sequence[Array], size: int) -> Array:
    """The flat indices of any part, ascending, each once."""
    full = [part for part in parts if part.size]
    if len(full) <= 1:
        return full[0] if full else _NONE
    there = np.zeros(size, bool)
    for part in full:
        there[part] = True
    return np.flatnonzero(there)


def _middle(x: Interval) -> Array:
    return x.lo if x.same or isinstance(x, Sparse) else np.asarray(x.lo + 0.5 * (x.hi - x.lo))


def _near_ties(center: Array, tie: int, margin: int, exact: Callable[[], Array] | None) -> Array:
    """Flat indices of the elements within `margin` float64 ulps of a tie, but for those on it that are `exact`."""
    word = center.reshape(-1).view(np.int64) + np.int64(tie // 2 + margin)
    word &= np.int64(tie - 1)
    near = word <= 2 * margin
    if exact is not None:
        # sums of two short values lie on ties more often than not
        on = word == margin
        if on.any():
            near &= ~(on & exact().reshape(-1))
    return np.flatnonzero(near)


def _place(own: tuple[int, ...], index: Array, shape: tuple[int, ...]) -> Array:
    """Flat indices into an array of shape `own` of the elements at flat indices of the shape it is broadcast to."""
    own = (1,) * (len(shape) - len(own)) + own
    # neighbouring dims that are both spread over or both there are one
    place, step, stride = np.zeros_like(index), 1, 1
    dims = [(n, m) for n, m in zip(own, shape, strict=True) if m > 1]
    while dims:
        there = dims[-1][0] > 1
        size = 1
        while dims and (dims[-1][0] > 1) is there:
            size *= dims.pop()[1]
        if there:
            part = index // step if step > 1 else index
            place += stride * (part % size if dims else part)
            stride *= size
        step *= size
    return place


def _taken(x: Interval, index: Array, shape: tuple[int, ...]) -> Interval:
    """The interval's elements at flat indices of the shape that it is broadcast to."""
    place = index if x.shape == shape else _place(x.shape, index, shape)

    def take(ends: Array) -> Array:
        return np.asarray(ends.reshape(-1).take(place))

    lo = take(x.lo)
    hi = lo if x.same else x.tops_at(index) if isinstance(x, Sparse) else take(x.hi)
    return tamed(Interval(lo, hi, narrow=x.narrow), x.span, x.bits)


__all__ = ["Sparse", "deferred", "rounded_near"]
