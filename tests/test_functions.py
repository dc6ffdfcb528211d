"""Budgets of elementary functions, and named roundings of ranges.

Budgets: against x87 extended precision (64-bit significands), whose functions share nothing with float64's.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from contract.endpoints import MAY, ONLY, Array, Freedom, Interval, point
from contract.formats import decode, round_to
from contract.formats import get as get_format
from contract.functions import FUNCTIONS, budget
from contract.readings.range import rounded_ends

INF = np.inf
WIDE: Any = np.longdouble
KEPT = Freedom(ftz=False)


def erf80(x: Any) -> Any:
    with mpmath.workprec(80):
        near = [float(v) for v in x]
        values = [mpmath.erf(v) if math.isfinite(v) else mpmath.mpf(math.erf(v)) for v in near]
        return np.array([WIDE(float(v)) + WIDE(float(v - mpmath.mpf(float(v)))) for v in values])


def below_one(y: Any, x: Any) -> Any:
    largest = np.where(np.isinf(x), WIDE(1), np.nextafter(WIDE(1), WIDE(0)))
    return np.clip(y, -largest, largest)


TRUE: dict[str, Any] = {
    "exp": np.exp,
    "tanh": lambda x: below_one(np.tanh(x), x),
    "erf": lambda x: below_one(erf80(x), x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


def function_range(name: str, x: Interval, k: Any, free: Freedom = KEPT) -> Interval:
    f = FUNCTIONS[name]
    lo, hi, nan = f.ends(x)
    exact = f.exact(x.lo) & (x.lo == x.hi)
    return budget(lo, hi, nan, k, free, exact if exact.any() else None, nonnegative=f.nonnegative)


def holds(x: Interval, values: Array) -> Array:
    nan = np.zeros(x.lo.shape, np.uint8) if x.nan is None else x.nan
    inside = (x.lo <= values) & (values <= x.hi) & (nan != ONLY)
    for end, beyond in ((x.lo, True), (x.hi, False)):
        # -0 below +0
        inside &= ~(
            (values == 0)
            & (end == 0)
            & (np.signbit(values) != np.signbit(end))
            & (np.signbit(values) == beyond)
        )
    return np.asarray(np.where(np.isnan(values), nan > 0, inside))


def arguments(fmt: str, name: str) -> Array:
    values = decode(np.arange(1 << 16), fmt)
    # erf in extended precision is slow, and is +-1 or linear elsewhere
    return (
        values[(np.abs(values) > 2.0**-12) & (np.abs(values) < 8)][::5] if name == "erf" else values
    )


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", TRUE)
@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_results_within_the_budget_are_inside_and_beyond_it_outside(
    fmt: str, name: str, k: int
) -> None:
    """k ulps of the true value's binade, on every 16-bit pattern."""
    x = arguments(fmt, name)
    y = function_range(name, point(x, narrow=True), k)
    with np.errstate(all="ignore"):
        true = np.asarray(TRUE[name](x.astype(WIDE)), WIDE)
        nearest = true.astype(np.float32)
    assert (np.isnan(true) == ((y.nan == ONLY) if y.nan is not None else False)).all()
    finite = np.isfinite(nearest) & np.isfinite(true) & (true != 0)
    declared = FUNCTIONS[name].exact(x)
    ulp = np.ldexp(WIDE(1), np.maximum(np.frexp(np.abs(true))[1] - 24, -149))
    compared = [0, 0]
    candidate = nearest.copy()
    for step in range(-k - 1, k + 2):
        with np.errstate(all="ignore"):
            candidate = nearest
            for _ in range(abs(step)):
                candidate = np.nextafter(candidate, np.float32(np.copysign(INF, step)))
            value = candidate.astype(np.float64)
            away = np.abs(candidate.astype(WIDE) - true)
        legal = finite & ~declared & (away <= k * ulp) & ((value >= 0) | (true < 0))
        # within float64's error of a power of two either ulp may be meant
        beyond = np.frexp(np.abs(true) * (1 + 2.0**-49))[1] - 24
        larger = np.ldexp(WIDE(1), np.maximum(beyond, -149))
        wrong = finite & ~declared & (away > (k + 2.0**-18) * larger) & (np.abs(value) < 2.0**127)
        inside = holds(y, value)
        assert inside[legal].all(), x[legal & ~inside][:5]
        assert not inside[wrong].any(), x[wrong & inside][:5]
        compared = [compared[0] + int(legal.sum()), compared[1] + int(wrong.sum())]
    assert min(compared) > 1_000
    exact = declared & ~np.isnan(true)
    assert (y.lo[exact] == true[exact]).all()
    assert (y.hi[exact] == true[exact]).all()
    assert (np.signbit(y.lo) == np.signbit(true))[exact].all()


@pytest.mark.parametrize("name", TRUE)
def test_ranges_hold_the_budgets_of_all_their_members(name: str) -> None:
    """A range that reaches past a power of two allows the larger ulps of the values there."""
    rng = np.random.default_rng(4)
    start = rng.uniform(0.3, 4, 500).astype(np.float32)
    # the arguments at which exp, sqrt and rsqrt pass powers of two
    start[:40] = np.tile([np.log(2), np.log(0.5), np.log(4), 0.25, 4, 16, 1, 0.0625], 5)
    start = np.abs(start)
    for width in (1, 3, 40):
        steps = [start - rng.integers(0, width + 1, 500).astype(np.float32) * np.spacing(start)]
        for _ in range(width):
            steps.append(np.nextafter(steps[-1], np.float32(INF)))
        x = Interval(steps[0].astype(np.float64), steps[-1].astype(np.float64))
        y = function_range(name, x, 2)
        for member in steps[:: max(1, width // 8)]:
            true = np.asarray(TRUE[name](member.astype(WIDE)), WIDE)
            ulp = np.ldexp(WIDE(1), np.frexp(np.abs(true))[1] - 24)
            for end in (true - 2 * ulp, true + 2 * ulp):
                assert ((y.lo <= end) & (end <= y.hi)).all()


def test_functions_near_overflow_and_among_the_subnormals() -> None:
    x = point(np.array([88.722839, 88.9, 800.0, -87.5, -103.0, -104.5, -800.0]), narrow=True)
    y = function_range("exp", x, 2)
    # 2^128 is reached by the budget; past it both the finite wide value and infinity are allowed
    assert y.hi[:3].tolist() == [INF] * 3
    assert (y.lo[:3] < INF).all()
    # 2 units of 2^-149, never below zero
    assert y.hi[6] == pytest.approx(2 * 2.0**-149, rel=1e-5, abs=0)
    assert y.lo[4:].tolist() == [0.0] * 3
    assert not np.signbit(y.lo[4:]).any()
    assert function_range("exp", x, 2, Freedom()).lo[3] == 0.0


@pytest.mark.parametrize(
    ("lo", "hi", "want"),
    [
        (-4.0, -1.0, (1.0, 1.0, ONLY)),
        (-1.0, 4.0, (-INF, INF, MAY)),
        (-1.0, -0.0, (-INF, -INF, MAY)),
        (-0.0, -0.0, (-INF, -INF, 0)),
        (-0.0, 0.0, (-INF, INF, 0)),
        (0.0, 0.0, (INF, INF, 0)),
        (0.0, 4.0, (0.5, INF, 0)),
        (INF, INF, (0.0, 0.0, 0)),
        (1.0, INF, (0.0, 1.0, 0)),
    ],
)
def test_rsqrt_of_ranges_around_zero(lo: float, hi: float, want: tuple[float, float, int]) -> None:
    y = function_range("rsqrt", Interval(np.array([lo]), np.array([hi])), 0)
    nan = 0 if y.nan is None else int(y.nan[0])
    assert nan == want[2]
    assert y.lo[0] == pytest.approx(want[0], abs=1e-9)
    assert y.hi[0] == pytest.approx(want[1], abs=1e-9)


def test_sqrt_of_a_range_that_starts_below_zero_holds_the_negative_zero() -> None:
    y = function_range("sqrt", Interval(np.array([-1.0]), np.array([4.0])), 0)
    assert y.nan is not None
    assert y.nan[0] == MAY
    assert np.signbit(y.lo[0])
    assert y.lo[0] == 0
    assert y.hi[0] == pytest.approx(2.0)


def test_values_at_declared_exact_points_are_fp32_values_for_the_steps_that_follow() -> None:
    ones = function_range("exp", point(np.zeros(3), narrow=True), 2)
    assert ones.same
    assert ones.narrow
    assert ones.lo.tolist() == [1.0, 1.0, 1.0]
    # one argument beside it, and what follows is a range
    mixed = function_range("exp", point(np.array([0.0, 1.0]), narrow=True), 2)
    assert not mixed.narrow
    assert mixed.lo[0] == mixed.hi[0] == 1.0


FORMATS = (
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "e5m2",
    "e4m3fn",
    "e4m3fnuz",
    "e2m1",
    "e8m0",
    "int8",
    "uint4",
)
MODES = ("nearest_even", "toward_zero", "down", "up", "half_away", "to_odd")


def members(fmt: str) -> Array:
    f = get_format(fmt)
    edge = [f.max, f.max * (1 + f.u / 2), f.max * (1 + f.u), f.max + 0.5, f.max * 2, 2.0**140, INF]
    low = [0.0, f.smallest / 4, f.smallest / 2, f.smallest, f.tiny, 1.0, 1 + f.u, 1.5, 2.5]
    values = np.array(edge + low)
    values = np.unique(np.concatenate([values, -values]))
    values = np.concatenate([values[values < 0], [-0.0, 0.0], values[values > 0]])
    return np.asarray(values)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_roundings_of_every_box_hold_the_roundings_of_its_members(fmt: str, mode: str) -> None:
    """Ends, NaN state and zero signs, for every policy on overflow and on infinities."""
    f = get_format(fmt)
    values = members(fmt)
    i, j = (v.ravel() for v in np.triu_indices(len(values)))
    policies = ["saturate"] if f.kind == "int" else ["saturate", "nan"] + ["inf"] * f.has_inf
    for overflow in policies:
        for infinity in policies:
            lo, hi, nan = rounded_ends(Interval(values[i], values[j]), f, mode, overflow, infinity)
            with np.errstate(all="ignore"):
                results = round_to(values, f, mode, overflow, infinity)  # type: ignore[arg-type]
            state = np.zeros(len(i), int) if nan is None else nan
            bad = np.isnan(results)
            for k, (p, q) in enumerate(zip(i, j, strict=True)):
                wrong = bad[p : q + 1]
                assert state[k] == (ONLY if wrong.all() else MAY if wrong.any() else 0)
                inside = results[p : q + 1][~wrong]
                if inside.size:
                    assert (lo[k], hi[k]) == (inside.min(), inside.max())


@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_one_values_round_as_the_format_does(fmt: str) -> None:
    values = decode(np.arange(1 << 16), "fp16" if fmt == "bf16" else "bf16")
    x = point(values, narrow=True)
    lo, hi, nan = rounded_ends(x, get_format(fmt), "nearest_even", None, None)
    assert lo is hi
    if fmt == "fp16":
        with np.errstate(all="ignore"):
            want = values.astype(np.float16).astype(np.float64)
    else:
        # in integers: the low half of an fp32 pattern, ties to even
        with np.errstate(invalid="ignore"):
            b = values.astype(np.float32).view(np.uint32)
        up = (b + np.uint32(0x7FFF) + ((b >> 16) & 1)) & np.uint32(0xFFFF0000)
        want = np.where(np.isnan(values), np.nan, up.view(np.float32).astype(np.float64))
    bad = np.isnan(want)
    assert nan is not None
    assert ((nan == ONLY) == bad).all()
    assert (lo == want)[~bad].all()
    assert (np.signbit(lo) == np.signbit(want))[~bad].all()
