"""Matrix products in a declared order: their range, and one legal execution.

u and t are the accumulator's (2^-24 and 2^-149 for fp32; t is the smallest normal where results may be flushed),
g(h) = h u / (1 - h u), S = a @ b, A = |a| @ |b| with upper ends, n the terms of one sum.

- any order of depth d: g(d) A, or g(d + 1) A + n t unless every product is exact (its bits fit the accumulator and it is
  a multiple of the smallest value); + 2 n t where results may be flushed
  (Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 4.2);
- chunks in K order: e as above for the chunk, then E += e + u (|S| + E + e) with the running sum S (ibid. 4.2);
- mma of k products, b guard bits: E += (k + k/4 + 1) 2^-(p-1+b) (|S before| + A + E) + 2^-(p-1) (|S after| + E), p the bits
  of the accumulator: every aligned term and the result lose less than one unit (a model: it is not measured on hardware);
- a tree is executed;
- uncertain operands add |a| rb + ra |b| + ra rb;
- no slack at all where all terms are multiples of q >= t and A <= 2^24 q (2^23 q on mma and where it truncates);
- P, N = sums of the positive and of the negative magnitudes: P (1 + g) at the overflow threshold admits +inf, N (1 + g)
  -inf, both NaN, whatever the exact sum is;
- float64 evaluation adds (n + 4) 2^-52 A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.endpoints import MAY, ONLY, Array, Freedom, Interval, collapse, flushed
from contract.interval import product_hull
from contract.orders import Accumulator, AnyOrder, Chunks, Mma, Tree
from contract.significands import PIECE, exact_sums, inexact_products

# The roundings of a running sum are no rounding points.
UNNAMED = ""

# Terms that are looked at one by one, at a time.
_TERMS = 1 << 17


def dot_range(
    a: Interval,
    b: Interval,
    order: AnyOrder | Chunks | Mma,
    acc: Accumulator,
    free: Freedom,
    start: Interval | None = None,
) -> Interval:
    """Range of start + a @ b: a (..., M, K), b (..., K, N), start (..., M, N).

    Computed in pieces of rows, columns and terms, so that memory does not grow with the shape beyond operands and result.
    """
    a, b = flushed(a, free), flushed(b, free)
    start = None if start is None else flushed(start, free)
    rows, columns = a.shape[-2], b.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, rows, columns)
    lo, hi = np.empty(shape), np.empty(shape)
    nan = np.zeros(shape, np.uint8)
    narrow = True
    count = max(1, int(np.prod(batch, dtype=np.int64)))
    width = max(16, PIECE // max(1, count * min(a.shape[-1], 4096)))
    height = max(16, PIECE // max(1, count * width))
    for r in range(0, rows, height):
        for c in range(0, columns, width):
            place = (..., slice(r, r + height), slice(c, c + width))
            piece = _piece(
                _cut(a, (..., slice(r, r + height), slice(None))),
                _cut(b, (..., slice(c, c + width))),
                order,
                acc,
                free,
                None
                if start is None
                else _cut(start.map(lambda x: np.broadcast_to(x, shape)), place),
            )
            lo[place], hi[place] = piece.lo, piece.hi
            nan[place] = 0 if piece.nan is None else piece.nan
            narrow = narrow and piece.narrow
    return collapse(lo, hi, nan if nan.any() else None, narrow=narrow)


def _cut(x: Interval, at: Any) -> Interval:
    return x.map(lambda ends: ends[at])


@dataclass
class _Sums:
    """S, A and the radii of one piece: `spread` of uncertain operands, `error` of a running order."""

    total: Array
    magnitude: Array
    spread: Array | float
    error: Array | float = 0.0


def _piece(
    a: Interval,
    b: Interval,
    order: AnyOrder | Chunks | Mma,
    acc: Accumulator,
    free: Freedom,
    start: Interval | None,
) -> Interval:
    operands = [a, b] if start is None else [a, b, start]
    special = not all(_finite(x) for x in operands)
    fa, fb = (_without_specials(a), _without_specials(b)) if special else (a, b)
    fs = None if start is None else _without_specials(start)
    n = a.shape[-1] + (start is not None)
    loose = inexact_products(fa, fb, acc)
    t = acc.tiny(free.ftz)
    sums = _accumulate(fa, fb, fs, order, acc, loose, t, free)
    if isinstance(order, AnyOrder):
        depth = n - 1 if order.depth is None else min(order.depth, n - 1)
        relative = gamma(depth + loose, acc.u)
        sums.error = relative * sums.magnitude + n * t * (loose + (2 if free.ftz else 0)) * (
            1 + relative
        )
    bits = acc.bits - 1 if isinstance(order, Mma) or acc.truncates else acc.bits
    exact = exact_sums(fa, fb, fs, sums.magnitude, bits, acc, free)
    radius = np.where(exact, 0.0, sums.error + (n + 4) * 2.0**-52 * sums.magnitude) + sums.spread
    low, high = sums.total - radius, sums.total + radius
    low, high = _signs(fa, fb, fs, low, high)
    nan: Array | None = None
    if special or not float(sums.magnitude.max(initial=0.0)) < acc.overflow / 2:
        low, high, nan = _overflow(a, b, start, sums, acc, low, high, n, special)
    narrow = acc.bits <= 24 and bool(exact.all()) and nan is None
    return collapse(low, high, nan, narrow=narrow)


def gamma(h: Any, u: float) -> Any:
    """g(h) = h u / (1 - h u), infinite where h u >= 1: 256 additions in bf16 promise nothing."""
    hu = np.asarray(h * u, np.float64)
    with np.errstate(divide="ignore"):
        return np.where(hu < 1, hu / np.where(hu < 1, 1 - hu, 1.0), 1e30)


def _accumulate(
    a: Interval,
    b: Interval,
    start: Interval | None,
    order: AnyOrder | Chunks | Mma,
    acc: Accumulator,
    loose: Array,
    t: float,
    free: Freedom,
) -> _Sums:
    n = a.shape[-1]
    step = {AnyOrder: 4096, Chunks: 0, Mma: 0}[type(order)]
    step = order.size if isinstance(order, Chunks) else order.k if isinstance(order, Mma) else step
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    sums = _Sums(np.zeros(shape), np.zeros(shape), 0.0)
    if start is not None:
        middle, spread = _middle(start)
        sums.total = sums.total + middle
        sums.magnitude, sums.spread = np.abs(middle) + spread + sums.magnitude, spread
    for k in range(0, n, step):
        am, ar = _middle(_cut(a, (..., slice(k, k + step))))
        bm, br = _middle(_cut(b, (..., slice(k, k + step), slice(None))))
        before = np.abs(sums.total) + sums.spread
        sums.total = sums.total + am @ bm
        aa, bb = np.abs(am), np.abs(bm)
        part = (aa + ar) @ (bb + br)
        sums.magnitude = sums.magnitude + part
        if not (np.isscalar(ar) and np.isscalar(br)):
            sums.spread = sums.spread + _spread(aa, ar, bb, br)
        after = np.abs(sums.total) + sums.spread
        terms = am.shape[-1]
        if isinstance(order, Chunks):
            depth = terms - 1 if order.depth is None else min(order.depth, terms - 1)
            e = gamma(depth + loose, acc.u) * part
            e = e + (terms * loose + (2 * terms + 1 if free.ftz else 0)) * t
            # the first chunk is added to nothing
            first = k == 0 and start is None
            sums.error = sums.error + e + (0.0 if first else acc.u * (after + sums.error + e))
        elif isinstance(order, Mma):
            unit = 2.0 ** (1 - acc.bits)
            lost = (order.k + order.k / 4 + 1) * unit * 2.0**-order.guard
            e = lost * (before + part + sums.error)
            e = e + (terms + 1) * t
            sums.error = sums.error + e + unit * (after + sums.error + e)
    return sums


def _spread(aa: Array, ar: Any, bb: Array, br: Any) -> Array:
    """|a| rb + ra |b| + ra rb."""
    spread: Any = 0.0
    if not np.isscalar(br):
        spread = spread + (aa + ar) @ br
    if not np.isscalar(ar):
        spread = spread + ar @ bb
    return np.asarray(spread * (1 + 2.0**-40))


def _middle(x: Interval) -> tuple[Array, Any]:
    if x.same:
        return x.lo, 0.0
    middle = 0.5 * x.lo + 0.5 * x.hi
    return middle, np.maximum(x.hi - middle, middle - x.lo)


def _finite(x: Interval) -> bool:
    ends = (x.lo,) if x.same else (x.lo, x.hi)
    return x.nan is None and all(
        bool(np.isfinite(e.min(initial=0.0)) and np.isfinite(e.max(initial=0.0))) for e in ends
    )


def _special(x: Interval) -> Array:
    bad = ~np.isfinite(x.lo) | ~np.isfinite(x.hi)
    return bad if x.nan is None else np.asarray(bad | (x.nan > 0))


def _without_specials(x: Interval) -> Interval:
    # what may be a NaN may also be its numbers, which are summed with the others
    bad = ~np.isfinite(x.lo) | ~np.isfinite(x.hi)
    if x.nan is not None:
        bad = bad | (x.nan == ONLY)
    lo = np.where(bad, 0.0, x.lo)
    return Interval(lo, lo if x.same else np.where(bad, 0.0, x.hi), narrow=x.narrow)


def _signs(
    a: Interval, b: Interval, start: Interval | None, low: Array, high: Array
) -> tuple[Array, Array]:
    """Sums of non-negative terms stay so; a zero sum may have either sign."""
    below = low < 0
    if below.any() and (start is None or bool((start.lo >= 0).all())):
        positive = (a.lo >= 0).all(-1, keepdims=True) & (b.lo >= 0).all(-2, keepdims=True)
        low = np.where(below & positive, 0.0, low)
    return np.where(low == 0, -0.0, low), np.where(high == 0, 0.0, high)


def _overflow(
    a: Interval,
    b: Interval,
    start: Interval | None,
    sums: _Sums,
    acc: Accumulator,
    low: Array,
    high: Array,
    n: int,
    special: bool,
) -> tuple[Array, Array, Array | None]:
    """The overflow rule, and what NaN and infinite operands do."""
    g = 1 + gamma(float(n + 1), acc.u) + (sums.error / np.maximum(sums.magnitude, 1e-300))
    # P and N from A and S, which float64 knows to a part in 2^52 of A
    own = sums.spread + (n + 4) * 2.0**-51 * sums.magnitude
    plus = (sums.magnitude + sums.total + own) / 2 * g
    minus = (sums.magnitude - sums.total + own) / 2 * g
    up, down = plus >= acc.overflow, minus >= acc.overflow
    sure_up = np.zeros(low.shape, bool)
    sure_down, wild = sure_up.copy(), sure_up.copy()
    state = np.zeros(low.shape, np.uint8)
    for terms, touched in _special_terms(a, b, start) if special else ():
        nan = np.zeros(touched.shape, np.uint8) if terms.nan is None else terms.nan
        real = touched & (nan != ONLY)
        sure_up |= (real & (terms.lo == np.inf)).any(-2)
        sure_down |= (real & (terms.hi == -np.inf)).any(-2)
        finite = np.isfinite(terms.lo) & np.isfinite(terms.hi)
        wild |= (real & (terms.lo != terms.hi) & ~finite).any(-2)
        state = np.maximum(state, np.where(touched, nan, 0).max(-2)).astype(np.uint8)
    up, down = up | wild | sure_up, down | wild | sure_down
    low, high = np.where(down, -np.inf, low), np.where(up, np.inf, high)
    low = np.where(sure_up & ~sure_down, np.inf, low)
    high = np.where(sure_down & ~sure_up, -np.inf, high)
    state = np.maximum(state, np.where(up & down, MAY, 0)).astype(np.uint8)
    state = np.where(sure_up & sure_down, ONLY, state).astype(np.uint8)
    only = state == ONLY
    low, high = np.where(only, 1.0, low), np.where(only, 1.0, high)
    return low, high, state if state.any() else None


def _special_terms(
    a: Interval, b: Interval, start: Interval | None
) -> Iterator[tuple[Interval, Array]]:
    """The terms with a NaN or infinite factor, as many at a time as fit, (..., M, terms, N), and where they are such."""
    bad_a, bad_b = _special(a), _special(b)
    axes_a = tuple(range(bad_a.ndim - 1))
    axes_b = (*range(bad_b.ndim - 2), bad_b.ndim - 1)
    found = np.flatnonzero(bad_a.any(axis=axes_a) | bad_b.any(axis=axes_b))
    sums = math.prod(np.broadcast_shapes(bad_a.shape[:-2], bad_b.shape[:-2]))
    step = max(1, _TERMS // max(1, sums * bad_a.shape[-2] * bad_b.shape[-1]))
    for first in range(0, len(found), step):
        at = found[first : first + step]
        left, right = _cut(a, (..., at, None)), _cut(b, (..., None, at, slice(None)))
        lo, hi, nan, _ = product_hull(left, right)
        touched = bad_a[..., at, None] | bad_b[..., None, at, :]
        yield Interval(lo, hi, nan), np.asarray(touched)
    if start is not None:
        yield _cut(start, (..., None, slice(None))), _special(start)[..., None, :]


def tree_dot(r: Any, a: Any, b: Any, order: Tree, start: Any = None) -> Any:
    """a @ b in one tree, executed with the steps of the reading: as exact as its operands."""

    def term(k: int) -> tuple[Any, Any]:
        return r.view(a, lambda x: x[..., k : k + 1]), r.view(b, lambda x: x[..., k : k + 1, :])

    def product(k: int) -> Any:
        return narrowed(r, r.mul(*term(k)), order.products or "fp32")

    def joined(total: Any, k: int) -> Any:
        if order.products is None:
            return narrowed(r, r._fma(*term(k), total, order.fused), order.accumulator)
        return narrowed(r, r.add(product(k), total), order.accumulator)

    return _executed(r, order, r.shape_of(a)[-1], product, joined, start)


def tree_sum(r: Any, a: Any, axis: int, order: Tree) -> Any:
    """The sum along an axis (kept with size 1) in one tree, executed with the steps of the reading."""
    n = r.shape_of(a)[axis]

    def term(k: int) -> Any:
        return r.view(a, lambda x: np.take(x, [k], axis))

    def joined(total: Any, k: int) -> Any:
        return narrowed(r, r.add(term(k), total), order.accumulator)

    return _executed(r, order, n, term, joined, None)


def _executed(
    r: Any,
    order: Tree,
    n: int,
    first_of: Callable[[int], Any],
    joined: Callable[[Any, int], Any],
    start: Any,
) -> Any:
    """The tree's root: term k alone is `first_of(k)`, joined to a running sum it is `joined(total, k)`."""

    def pairwise(first: int, count: int) -> Any:
        if count == 1:
            return first_of(first)
        half = 1 << ((count - 1).bit_length() - 1)
        total = r.add(pairwise(first, half), pairwise(first + half, count - half))
        return narrowed(r, total, order.accumulator)

    if order.kind == "pairwise":
        total = pairwise(0, n)
        return total if start is None else narrowed(r, r.add(total, start), order.accumulator)
    if start is None:
        first = narrowed(r, first_of(0), order.accumulator)
        # an accumulator may start from +0: a term of -0 is then +0
        total = r._union(first, r.add(first, r.const(0.0)))
    else:
        total = joined(start, 0)
    for k in range(1, n):
        total = joined(total, k)
    return total


def narrowed(r: Any, x: Any, fmt: str) -> Any:
    """A partial sum as its accumulator holds it; fp32 is what every step of a reading gives."""
    return x if fmt == "fp32" else r._round(UNNAMED, x, fmt, "nearest_even", None, None)


__all__ = ["dot_range", "gamma", "tree_dot", "tree_sum"]
