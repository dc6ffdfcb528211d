"""Softmax-weighted sums o = sum_j e_j v_j / L with e_j = exp(s_j - M), L = sum_j e_j, in running form: the range.

The execution. Keys come in blocks, in any number of splits; each block raises a running maximum, its weights are
p_j = exp(s_j - M_j), what was accumulated is rescaled by exp(M_old - M_new), splits are merged the same way, and the sum is
divided by L, or multiplied by its reciprocal. `merges` bounds how many rescalings a term goes through, `depth` how many
additions. Masked keys have weight exactly 0 and are not looked at.

The bound. u, t and g as in `contract.products`, k the ulps of exp, o the float64 value at the scores' middles:

    eps_j = rad s_j + 2 u |s_j - M| + 2 u (1 + merges) |M| + (2 k + 1) u - log(1 - approximate)

is the error of weight j before rescaling: its score, the subtraction and exp2's folded scale (the arguments of all
rescalings of one term add up to |s_j - M|), the scaled maximum, and exp itself, which may be an approximate one. With a = g(depth + (2 k + 2) merges + 3)
(rescalings, additions, product, reciprocal and division) the weights in numerator and denominator are each within
A_j = (1 + expm1(eps_j)) (1 + a) - 1 of e_j, and since sum e_j (v_j - o) = 0,

    |o' - o| <= [sum_j e_j A_j (|v_j| + |o|) + t (1 + merges) sum_j (|v_j| + |o| + 1)] / (L (1 - sum_j e_j A_j / L)).

The rounding of the weights (`Gauge`). [p_lo, p_hi] = R(exp(s_j - M_j) (1 -+ expm1(eps_j + rad M_j))): o takes the middle times
exp(M_j - M), the radius half the width times exp(M_j - M) |v_j| / L. M_j is one number in each block: its uncertainty moves
the block's part as a whole, |sum_{j in block} p_j (v_j - [o])| expm1(rad M_j) / L. L sums rounded or unrounded weights.
Gauge `any` admits every maximum: the rounding is 2^-p e_j and shows nothing.

Domain: live scores and values finite, eps_j and sum e_j A_j / L at most 1/4, |v| <= 2^100. Elsewhere single steps
(`contract.attention_steps`).

Source of the algorithm: Dao et al., FlashAttention, 2022, algorithm 1; Milakov and Gimelshein, Online normalizer
calculation for softmax, 2018. The bound is derived above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.endpoints import MAY, TINY, Array, Freedom, Interval, collapse, flush_ends, ulp32
from contract.errors import DeclarationError
from contract.orders import ANY, FINAL, FP32, Gauge, running
from contract.products import gamma
from contract.significands import exact_sums
from contract.sums import U

LARGEST = 2.0**100


@dataclass(frozen=True)
class Softmax:
    """What a contract fixes of one softmax-weighted sum.

    Attributes:
        depth: most additions a term goes through; None for any order.
        merges: most rescalings a term goes through; None for one per block (16 keys where no block is declared).
        gauge, p_format, p_mode: how the weights are rounded before they meet v; p_format None: not at all.
        low_format, low_mode: how what that rounding left over is rounded, which meets v as well; low_format None: nothing
            of it is kept.
        ulps: of exp.
        approximate: relative error of a fast exponential, beyond the ulps, that gives the weights; exp(0) is then not 1
            either. Rescalings keep to the ulps.
        sums: 'rounded' or 'unrounded', the weights that L sums.
        empty: 'zeros', 'nan' or 'mean' (of all v), the row without a live key.
    """

    depth: int | None = None
    merges: int | None = None
    gauge: Gauge = FINAL
    p_format: str | None = None
    p_mode: str = "nearest_even"
    low_format: str | None = None
    low_mode: str = "nearest_even"
    ulps: float = 2
    sums: str = "unrounded"
    empty: str = "zeros"
    approximate: float = 0.0

    def __post_init__(self) -> None:
        if self.sums not in ("rounded", "unrounded"):
            raise DeclarationError(f"sums={self.sums!r}; use 'rounded' or 'unrounded'")
        if self.empty not in ("zeros", "nan", "mean"):
            raise DeclarationError(f"empty={self.empty!r}; use 'zeros', 'nan' or 'mean'")
        if not 0 <= self.approximate < 0.25:
            raise DeclarationError(
                f"approximate={self.approximate!r}; a relative error is at least 0 and below 1/4"
            )

    def merges_of(self, keys: int) -> int:
        if self.merges is not None:
            return self.merges
        return len(self.gauge.blocks(keys)) if self.gauge.block else -(-keys // 16)

    def own(self) -> float:
        """Error of the exponential that gives a weight."""
        return float((2 * self.ulps + 1) * U - np.log1p(-self.approximate))

    def chain(self, keys: int) -> float:
        """Relative error of additions, rescalings, product and division.

        A low half meets v on its own: one addition more, and magnitudes of both halves, together at most 1 + 2^-7.
        """
        depth = keys - 1 if self.depth is None else self.depth
        steps = depth + (2 * self.ulps + 2) * self.merges_of(keys) + 3
        return float(
            gamma(steps, U) if self.low_format is None else gamma(steps + 1, U) * (1 + 2.0**-7)
        )


def least(spec: Softmax) -> float:
    """What an exponential below the smallest value may still be: its ulps are those of zero."""
    return float(2 * spec.ulps + 2) * 2.0**-149


@dataclass
class Weights:
    """Scores and maxima of live keys, ready for a bound; (..., Q, K) but for maxima (..., Q, 1)."""

    live: Array
    lo: Array
    hi: Array
    middle: Array
    radius: Array
    lowest: Array  # of the maximum
    highest: Array


def weights_of(s: Interval, live: Array, empty: str) -> tuple[Weights, Array]:
    """Scores of live keys, and which rows are empty. A row that averages all v has scores 0 instead."""
    none = ~live.any(axis=-1, keepdims=True)
    lo, hi = s.lo, s.hi
    if empty == "mean" and none.any():
        lo, hi, live = np.where(none, 0.0, lo), np.where(none, 0.0, hi), live | none
    # a weight of exactly 0 is a masked one
    live = live & ~((lo == -np.inf) & (hi == -np.inf))
    with np.errstate(invalid="ignore"):
        middle = np.where(lo == hi, lo, 0.5 * lo + 0.5 * hi)
        radius = np.where(lo == hi, 0.0, np.maximum(hi - middle, middle - lo))
    bottom, top = _largest(lo, live), _largest(hi, live)
    middle, radius = np.where(live, middle, 0.0), np.where(live, radius, 0.0)
    return Weights(np.asarray(live), lo, hi, middle, radius, bottom, top), np.asarray(none)


def _largest(x: Array, live: Array) -> Array:
    return np.asarray(np.max(x, axis=-1, keepdims=True, where=live, initial=-np.inf))


def maxima(w: Weights, gauge: Gauge) -> list[tuple[slice, Array, Array]]:
    """For each block of keys: the range of the maximum its weights are rounded against."""
    keys = w.live.shape[-1]
    if gauge.kind == "final":
        return [(slice(0, keys), w.lowest, w.highest)]
    found = []
    low = high = np.full((*w.live.shape[:-1], 1), -np.inf)
    for block in gauge.blocks(keys):
        if gauge.split and block.start % gauge.split == 0:
            low = high = np.full_like(low, -np.inf)
        live = w.live[..., block]
        low = np.maximum(low, _largest(w.lo[..., block], live))
        high = np.maximum(high, _largest(w.hi[..., block], live))
        found.append((block, low, high))
    return found


def halves(e: Array, spec: Softmax) -> tuple[Array, Array]:
    """A weight as it meets v: R(e), and the rounded rest of it, or 0. Their sum never falls where e grows."""
    if spec.p_format is None:
        return e, np.zeros_like(e)
    high: Any = formats.round_to(e, spec.p_format, spec.p_mode)  # type: ignore[arg-type]
    if spec.low_format is None:
        return np.asarray(high), np.zeros_like(e)
    # exact: both have the same exponent, or neighbouring ones
    rest = np.where(np.isfinite(high), e - high, 0.0)
    low: Any = formats.round_to(rest, spec.low_format, spec.low_mode)  # type: ignore[arg-type]
    return np.asarray(high), np.asarray(low)


def rounded_weights(e: Array, eps: Array, spec: Softmax, free: Freedom) -> tuple[Array, Array]:
    """Ends of R(e (1 -+ eps)); a subnormal result may be flushed."""
    with np.errstate(over="ignore", invalid="ignore"):
        lo = np.add(*halves(e * np.maximum(1 - eps, 0.0), spec))
        hi = np.add(*halves(e * (1 + eps), spec))
        if spec.low_format is not None and free.ftz:
            # of fp32 weights below 2^-102 a low half may be subnormal, and be flushed on its own
            small = np.where((e > 0) & (e < 2.0**-100), TINY, 0.0)
            lo, hi = np.maximum(lo - small, 0.0), hi + small
    return flush_ends(lo, hi) if free.ftz else (lo, hi)


def softmax_av_range(
    s: Interval, v: Interval, mask: Array | None, spec: Softmax, free: Freedom
) -> tuple[Interval, Interval]:
    """Ranges of o and of the natural log-sum-exp.

    Args:
        s: scores (..., Q, K).
        v: values (..., K, D).
        mask: True where a key is live, broadcast to s; None: all are. What a masked key holds plays no part, as long
            as it is finite.
    """
    from contract.attention_steps import by_steps

    live = np.broadcast_to(np.asarray(True) if mask is None else mask, s.shape)
    w, none = weights_of(s, live, spec.empty)
    with np.errstate(all="ignore"):
        o, lse, inside = _closed(s, v, w, spec, free)
    inside = inside & ~none if spec.empty != "mean" else inside
    if s.nan is not None:
        # also where the score is else -inf, and its weight 0
        inside = inside & ~(live & (s.nan > 0)).any(axis=-1, keepdims=True)
    if not inside.all():
        o_steps, lse_steps = by_steps(s, v, live, w, none, spec, free)
        rows = inside.all(axis=-1, keepdims=True)
        o, lse = _choose(inside, o, o_steps), _choose(np.asarray(rows), lse, lse_steps)
    return _poisoned(o, v, live & w.live), lse


def _poisoned(o: Interval, v: Interval, live: Array) -> Interval:
    """The weight of a key that is masked, or of score -inf, is 0, and 0 times a v that is not finite may be computed: NaN
    may."""
    bad = ~np.isfinite(v.lo) | ~np.isfinite(v.hi)
    if v.nan is not None:
        bad = bad | (v.nan > 0)
    if not bad.any():
        return o
    may = (~live).astype(np.float64) @ bad.astype(np.float64) > 0
    nan = np.where(may, MAY, 0).astype(np.uint8)
    return Interval(o.lo, o.hi, nan if o.nan is None else np.maximum(nan, o.nan))


def _choose(inside: Array, a: Interval, b: Interval) -> Interval:
    nan = np.where(inside, np.uint8(0), np.uint8(0) if b.nan is None else b.nan).astype(np.uint8)
    lo, hi = np.where(inside, a.lo, b.lo), np.where(inside, a.hi, b.hi)
    return collapse(lo, hi, nan if nan.any() else None, narrow=False)


def _closed(
    s: Interval, v: Interval, w: Weights, spec: Softmax, free: Freedom
) -> tuple[Interval, Interval, Array]:
    """The closed form, and where it holds (..., Q, D)."""
    keys = s.shape[-1]
    merges, chain = spec.merges_of(keys), spec.chain(keys)
    center = 0.5 * w.lowest + 0.5 * w.highest
    distance = np.where(w.live, w.middle - center, 0.0)
    eps = w.radius + 2 * U * np.abs(w.highest - w.middle + w.radius)
    eps = eps + 2 * U * (1 + merges) * np.maximum(np.abs(w.lowest), np.abs(w.highest))
    eps = np.where(w.live, eps + spec.own(), 0.0)
    e = np.where(w.live, np.exp(distance), 0.0)
    vm = 0.5 * v.lo + 0.5 * v.hi
    va = np.maximum(np.abs(v.lo), np.abs(v.hi))
    bad_v = (
        (va > LARGEST) | np.isnan(va) | (np.zeros(v.shape, bool) if v.nan is None else v.nan > 0)
    )
    vm, va = np.where(bad_v, 0.0, vm), np.where(bad_v, 0.0, va)
    p = _rounding(w, e, eps, center, spec, free)
    total = (p.sums if spec.sums == "rounded" else e).sum(axis=-1, keepdims=True)
    o = (p.value @ vm) / total
    each = (1 + np.expm1(eps)) * (1 + chain) - 1 + keys * 2.0**-50
    wrong = np.where(w.live, p.value * each, 0.0)
    wrong_sum = (np.where(w.live, p.sums if spec.sums == "rounded" else e, 0.0) * each).sum(
        axis=-1, keepdims=True
    )
    counted = spec.sums == "rounded"
    half_sum = p.half.sum(axis=-1, keepdims=True) if counted else 0.0
    t = (TINY if free.ftz else least(spec)) * (1 + merges)
    live = w.live.astype(np.float64)
    count = live.sum(axis=-1, keepdims=True)
    radius = (wrong + p.half) @ va + np.abs(o) * (wrong_sum + half_sum)
    radius = radius + t * (live @ va + count * (np.abs(o) + 1))
    if not v.same:
        radius = radius + (p.value * (1 + each)) @ np.where(bad_v, 0.0, 0.5 * v.hi - 0.5 * v.lo)
    shift, shift_sum = _shifts(p, vm, o, counted)
    share = (wrong_sum + half_sum + shift_sum + t * count) / total
    radius = (radius + shift) / total / (1 - share) * (1 + 2.0**-30)
    inside = (eps.max(axis=-1, keepdims=True) <= 0.25) & (share <= 0.25) & (total > 0.5)
    inside = inside & ~(live @ bad_v.astype(np.float64) > 0) & (np.abs(center) < LARGEST)
    if not spec.approximate:
        radius = np.where(_exact(s, v, w, free), 0.0, radius)
    low, high = o - radius, o + radius
    low, high = np.where(low == 0, -0.0, low), np.where(high == 0, 0.0, high)
    lse = _lse(center, total, share, spec)
    return Interval(low, high), lse, np.asarray(inside & np.isfinite(radius))


def _exact(s: Interval, v: Interval, w: Weights, free: Freedom) -> Array:
    """Live scores all exactly 0 (exp2 with a folded scale is exact only there), a power of two of them, sums exact."""
    zero = (w.radius == 0).all(axis=-1, keepdims=True) & (w.lowest == 0) & (w.highest == 0)
    zero = zero & (~w.live | (w.middle == 0)).all(axis=-1, keepdims=True)
    count = w.live.sum(axis=-1, keepdims=True)
    zero = zero & (count & (count - 1) == 0)
    if not zero.any():
        return np.asarray(zero)
    ones = w.live.astype(np.float64)
    # rows of v that no query reads do not count
    read = np.asarray(ones.reshape(-1, *ones.shape[-2:]).any(axis=(0, 1)))[:, None]
    clean = Interval(np.where(read, v.lo, 0.0), np.where(read, v.hi, 0.0))
    clean = Interval(clean.lo, clean.lo) if v.same else clean
    magnitude = ones @ np.maximum(np.abs(clean.lo), np.abs(clean.hi))
    exact = exact_sums(Interval(ones, ones), clean, None, magnitude, 24, FP32, free)
    return np.asarray(exact & zero)


@dataclass
class _Rounded:
    """Weights as they meet v, relative to the row's maximum: value, half of their uncertainty, and the blocks' shifts."""

    value: Array
    half: Array
    sums: Array
    blocks: list[tuple[slice, Array]]


def _rounding(
    w: Weights, e: Array, eps: Array, center: Array, spec: Softmax, free: Freedom
) -> _Rounded:
    if spec.p_format is None:
        return _Rounded(e, np.zeros_like(e), e, [])
    fmt = formats.get(spec.p_format)
    if spec.gauge.kind == "any":
        # to nearest, or one whole unit where the mode is another; below the smallest normal an absolute unit
        unit = 2.0 ** ((0 if spec.p_mode.startswith("nearest") else 1) - fmt.precision)
        small = 2.0 ** (fmt.emin - fmt.precision + 1) if not free.ftz else 2.0**fmt.emin
        half = np.where(w.live, e * unit * (1 + np.expm1(eps)) + small, 0.0)
        return _Rounded(e, half, e, [])
    value, half = np.zeros_like(e), np.zeros_like(e)
    blocks = []
    for block, low, high in maxima(w, spec.gauge):
        own = 0.5 * low + 0.5 * high
        rad = np.where(np.isfinite(own), np.maximum(high - own, own - low), 0.0)
        own = np.where(np.isfinite(own), own, center)
        live = w.live[..., block]
        a = np.where(live, np.exp(np.where(live, w.middle[..., block] - own, 0.0)), 0.0)
        lo, hi = rounded_weights(a, np.expm1(eps[..., block] + rad), spec, free)
        scale = np.exp(own - center)
        value[..., block] = (0.5 * lo + 0.5 * hi) * scale
        half[..., block] = (0.5 * hi - 0.5 * lo) * scale
        blocks.append((block, np.expm1(rad)))
    return _Rounded(value, half, value, blocks)


def _shifts(p: _Rounded, vm: Array, o: Array, counted: bool) -> tuple[Any, Any]:
    """What a block's uncertain maximum moves: its rounded part as a whole, in the numerator and in L."""
    shift: Any = 0.0
    shift_sum: Any = 0.0
    for block, rad in p.blocks:
        if not rad.any():
            continue
        part = p.value[..., block] @ vm[..., block, :]
        if counted:
            inside = p.value[..., block].sum(axis=-1, keepdims=True)
            part, shift_sum = part - o * inside, shift_sum + rad * inside
        shift = shift + np.abs(part) * rad + (p.half[..., block] @ np.abs(vm[..., block, :])) * rad
    return shift, shift_sum


def _lse(center: Array, total: Array, share: Array, spec: Softmax) -> Interval:
    """M + log L: the relative error of L is an absolute one of its logarithm."""
    log = np.log(total)
    value = center + log
    slack = -np.log1p(-np.minimum(share, 0.5)) + (spec.ulps + 1) * ulp32(log)
    slack = slack + 4 * U * (np.abs(center) + np.abs(value)) + 2.0**-149
    return Interval(value - slack, value + slack)


__all__ = ["ANY", "FINAL", "Gauge", "Softmax", "running", "softmax_av_range"]
