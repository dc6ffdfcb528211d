"""Softmax-weighted sums outside the domain of `contract.attention`: by single steps, sound for every bit pattern.

Weights are intervals exp([s - M]) (1 -+ expm1(eps)), relative to the row's maximum; the sums are products of intervals. What
running maxima may do to scores that large is left open: where eps exceeds 1/4, every value and NaN are admitted.
"""

from __future__ import annotations

import numpy as np

from contract import formats
from contract.attention import Softmax, Weights, least, maxima, rounded_weights
from contract.endpoints import MAY, ONLY, TINY, Array, Freedom, Interval
from contract.interval import div
from contract.orders import FP32, AnyOrder
from contract.products import dot_range
from contract.sums import U, sum_range


def by_steps(
    s: Interval, v: Interval, live: Array, w: Weights, none: Array, spec: Softmax, free: Freedom
) -> tuple[Interval, Interval]:
    """Ranges of o and of the log-sum-exp, row by row without a closed form."""
    keys = s.shape[-1]
    merges, chain = spec.merges_of(keys), spec.chain(keys)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(w.lowest), np.abs(w.highest))
        eps = 2 * U * np.abs(w.highest - w.middle + w.radius) + 2 * U * (1 + merges) * size
        eps = np.where(w.live, eps + spec.own(), 0.0)
        low = np.exp(np.where(w.live, w.middle - w.radius - w.highest, 0.0)) * np.exp(-eps)
        high = np.exp(
            np.where(w.live, np.minimum(w.middle + w.radius - w.lowest, 0.0), 0.0)
        ) * np.exp(eps)
        low, high = np.where(w.live, low, 0.0), np.where(w.live, high + least(spec), 0.0)
        if free.ftz:
            low = np.where(low < TINY, 0.0, low)
    e = Interval(low, high)
    weights = _rounded(w, e, eps, spec, free)
    d = AnyOrder(spec.depth)
    # a key that is masked is not read, whatever its v holds
    total = dot_range(weights, _clean(v), d, FP32, free)
    below = sum_range(weights if spec.sums == "rounded" else e, -1, spec.depth, free)
    o = div(total, below, free)
    with np.errstate(all="ignore"):
        more = chain * np.maximum(np.abs(o.lo), np.abs(o.hi)) * 2 + TINY * (1 + merges) * keys * 4
        lo, hi = o.lo - more, o.hi + more
        bounds = below.lo, below.hi
        lse = Interval(
            np.log(bounds[0]) + w.lowest - 8 * U * size - 1e-6,
            np.log(bounds[1]) + w.highest + 8 * U * size + 1e-6,
        )
    state = np.zeros(lo.shape, np.uint8) if o.nan is None else o.nan.copy()
    wide = ~(eps.max(axis=-1, keepdims=True) <= 0.25) | _touched(v, live)
    lo, hi = np.where(wide | np.isnan(lo), -np.inf, lo), np.where(wide | np.isnan(hi), np.inf, hi)
    state = np.where(wide, np.maximum(state, MAY), state).astype(np.uint8)
    return _conventions(Interval(lo, hi, state), lse, s, v, live, w, none, wide, spec)


def _rounded(w: Weights, e: Interval, eps: Array, spec: Softmax, free: Freedom) -> Interval:
    if spec.p_format is None:
        return e
    fmt = formats.get(spec.p_format)
    lo, hi = np.zeros_like(e.lo), np.zeros_like(e.hi)
    if spec.gauge.kind == "any":
        unit = 2.0 ** (1 - fmt.precision)
        small = 2.0**fmt.emin
        lo, hi = np.maximum(e.lo * (1 - unit) - small, 0.0), e.hi * (1 + unit) + small
        return Interval(np.where(w.live, lo, 0.0), np.where(w.live, hi, 0.0))
    with np.errstate(all="ignore"):
        for block, bottom, top in maxima(w, spec.gauge):
            near = w.middle[..., block]
            near_lo, near_hi = near - w.radius[..., block], near + w.radius[..., block]
            error = np.expm1(eps[..., block])
            first, _ = rounded_weights(np.exp(near_lo - top), error, spec, free)
            _, last = rounded_weights(
                np.exp(np.minimum(near_hi - bottom, 0.0)) + least(spec), error, spec, free
            )
            # each rescaling may underflow, to zero or to a few of the smallest values
            scale = np.exp(np.minimum(bottom - w.highest, 0.0))
            scale = np.where(scale < TINY, 0.0, scale) if free.ftz else scale
            lost = least(spec) * (1 + spec.merges_of(w.live.shape[-1]))
            lo[..., block] = first * scale * (1 - error)
            hi[..., block] = last * (np.exp(np.minimum(top - w.lowest, 0.0)) * (1 + error) + lost)
    lo, hi = np.where(np.isnan(lo), 0.0, np.maximum(lo, 0.0)), np.where(np.isnan(hi), np.inf, hi)
    return Interval(np.where(w.live, lo, 0.0), np.where(w.live, hi, 0.0))


def _clean(v: Interval) -> Interval:
    bad = ~np.isfinite(v.lo) | ~np.isfinite(v.hi)
    return Interval(np.where(bad, 0.0, v.lo), np.where(bad, 0.0, v.hi))


def _touched(v: Interval, live: Array) -> Array:
    """Where a live key's v is not finite: the output is an infinity or NaN, by conventions of underflow."""
    bad = ~np.isfinite(v.lo) | ~np.isfinite(v.hi)
    if v.nan is not None:
        bad = bad | (v.nan > 0)
    return np.asarray(live.astype(np.float64) @ bad.astype(np.float64) > 0)


def _conventions(
    o: Interval,
    lse: Interval,
    s: Interval,
    v: Interval,
    live: Array,
    w: Weights,
    none: Array,
    wide: Array,
    spec: Softmax,
) -> tuple[Interval, Interval]:
    """NaN scores and values, infinite maxima, rows whose live scores are all -inf, and empty rows."""
    assert o.nan is not None
    lo, hi, state = o.lo, o.hi, o.nan
    nan_s = np.zeros(s.shape, np.uint8) if s.nan is None else s.nan
    nan_v = np.zeros(v.shape, np.uint8) if v.nan is None else v.nan
    sure = (live & (nan_s == ONLY)).any(axis=-1, keepdims=True) | (w.lowest == np.inf)
    maybe = (live & (nan_s > 0)).any(axis=-1, keepdims=True) | (w.highest == np.inf)
    # all live scores may be -inf: NaN, or what an empty row gives, whatever their v holds
    nothing = (w.lowest == -np.inf) & ~none
    met = live.astype(np.float64) @ (nan_v == ONLY).astype(np.float64) > 0
    sure = sure | (met & ~nothing)
    open_row = maybe | nothing
    lo, hi = np.where(open_row, -np.inf, lo), np.where(open_row, np.inf, hi)
    # 0 / 0 of weights that all vanish is no NaN for a kernel that takes the row for an empty one
    state = np.where(open_row, MAY, state)
    state = np.where(sure, ONLY, state)
    rows = wide.any(axis=-1, keepdims=True) | open_row | sure.any(axis=-1, keepdims=True)
    l_lo, l_hi = np.where(rows, -np.inf, lse.lo), np.where(rows, np.inf, lse.hi)
    l_state = np.where(rows, MAY, 0)
    if spec.empty != "mean":
        empty_value = spec.empty == "zeros"
        lo, hi = np.where(none, -0.0, lo), np.where(none, 0.0, hi)
        state = np.where(none, 0 if empty_value else ONLY, state)
        l_lo, l_hi = np.where(none, -np.inf, l_lo), np.where(none, -np.inf, l_hi)
        l_state = np.where(none, 0 if empty_value else MAY, l_state)
    else:
        # the fill value's own logarithm is nobody's convention
        l_lo, l_hi = np.where(none, -np.inf, l_lo), np.where(none, np.inf, l_hi)
    only = state == ONLY
    lo, hi = np.where(only, 1.0, lo), np.where(only, 1.0, hi)
    l_lo, l_hi = np.where(np.isnan(l_lo), -np.inf, l_lo), np.where(np.isnan(l_hi), np.inf, l_hi)
    return (
        Interval(lo, hi, state.astype(np.uint8)),
        Interval(l_lo, l_hi, l_state.astype(np.uint8)),
    )
