"""Twelve ways in which a plain interval hull is unsound, each with the smallest example known."""

from __future__ import annotations

import numpy as np

from contract import sums
from contract.endpoints import MAY, TINY, Array, Freedom, Interval, point
from contract.formats import get as get_format
from contract.functions import FUNCTIONS, budget
from contract.fused import fma_f32
from contract.interval import add, maximum, mul, square
from contract.readings.range import rounded_ends

FREE = Freedom()
INF = np.inf


def one(value: float) -> Interval:
    return point(np.array([value]), narrow=True, raw=True)


def box(lo: float, hi: float) -> Interval:
    return Interval(np.array([lo]), np.array([hi]), narrow=True)


def state(x: Interval) -> int:
    return 0 if x.nan is None else int(x.nan[0])


def test_01_a_fused_step_rounds_once() -> None:
    a, b, c = (np.array([v]) for v in (24929.0, 673.0, 2.0**-30))
    assert fma_f32(a, b, c) == 16777218.0


def test_02_an_unnamed_step_may_be_kept_wider() -> None:
    p = 1 + 2.0**-23
    x = mul(one(p), one(p), FREE)
    assert x.lo[0] <= np.float32(p * p) <= x.hi[0]
    assert x.lo[0] <= p * p <= x.hi[0]
    assert mul(one(p), one(p), Freedom(wide=False)).lo[0] == np.float32(p * p)


def test_03_zero_times_infinity_hides_inside_a_box() -> None:
    x = mul(box(-1, 1), one(INF), FREE)
    assert (x.lo[0], x.hi[0], state(x)) == (-INF, INF, MAY)
    assert state(add(box(1, INF), box(-INF, 1), FREE)) == MAY


def test_04_a_finite_sum_may_overflow_in_some_order() -> None:
    x = sums.sum_range(point(np.array([[3e38, 3e38, -3e38]]), narrow=True), 1, None, FREE)
    assert x.hi[0, 0] == INF
    assert x.lo[0, 0] < 3.1e38


def test_05_a_closed_variance_ends_where_squares_overflow() -> None:
    rows = np.array([[2.0**70, -(2.0**70)]])
    mean = Interval(np.array([[-1.0]]), np.array([[1.0]]))
    assert sums.variance_range(point(rows, narrow=True), mean, 1, None, FREE) is None


def test_06_a_square_is_not_the_product_of_two_ranges() -> None:
    assert mul(box(-1, 2), box(-1, 2), FREE).lo[0] == -2.0
    assert square(box(-1, 2), FREE).lo[0] == 0.0


def test_07_u_of_fp32_is_half_an_ulp_of_one() -> None:
    terms = [1.0, 2.0**-24, 2.0**-24]
    assert (np.float32(terms[0]) + np.float32(terms[1])) + np.float32(terms[2]) == 1.0
    x = sums.sum_range(point(np.array([terms]), narrow=True), 1, None, FREE)
    # both additions are off by u: the bound is met with nothing to spare
    assert 1 - 2.0**-44 < x.lo[0, 0] <= 1.0


def test_08_zeros_have_signs() -> None:
    x = maximum(one(-0.0), one(0.0))
    assert np.signbit([x.lo[0], x.hi[0]]).tolist() == [True, False]
    x = sums.sum_range(point(np.array([[-0.0, -0.0]]), narrow=True), 1, None, FREE)
    assert np.signbit([x.lo[0, 0], x.hi[0, 0]]).tolist() == [True, False]


def test_09_subnormals_may_be_flushed_when_read_and_when_written() -> None:
    read = mul(one(2.0**-130), one(2.0**20), FREE)
    assert read.lo[0] == 0.0
    assert read.hi[0] == 2.0**-110
    written = mul(one(-(2.0**-64)), one(2.0**-64), FREE)
    assert np.signbit(written.hi[0])
    assert written.hi[0] == 0.0
    assert mul(one(TINY), one(1.0), FREE).lo[0] == TINY


def test_10_products_of_31_and_26_bits_are_not_exact_in_float64() -> None:
    """A range of them encloses the integer product although float64 misses it."""
    a, b = 2**31 - 1, 2**26 - 1
    x = mul(Interval(*[np.array([float(a)])] * 2), Interval(*[np.array([float(b)])] * 2), FREE)
    assert int(float(a) * float(b)) != a * b
    assert int(x.lo[0]) <= a * b <= int(x.hi[0])


def test_11_fp8_without_saturation_becomes_nan_past_its_last_value() -> None:
    f = get_format("e4m3fn")

    def rounded(lo: float, hi: float, overflow: str) -> tuple[float, float, int]:
        low, high, nan = rounded_ends(box(lo, hi), f, "nearest_even", overflow, None)
        return float(low[0]), float(high[0]), 0 if nan is None else int(nan[0])

    assert rounded(440.0, 470.0, "nan") == (448.0, 448.0, MAY)
    assert rounded(-470.0, 470.0, "nan") == (-448.0, 448.0, MAY)
    assert rounded(440.0, 470.0, "saturate") == (448.0, 448.0, 0)


def test_12_a_budget_is_of_the_true_values_binade() -> None:
    """tanh saturates below 1, where ulps are 2^-24; exp of a range past ln 2 has the larger ulps of 2."""

    def f(name: str, x: Interval) -> tuple[Array, Array]:
        exact = FUNCTIONS[name].exact(x.lo) & (x.lo == x.hi)
        y = budget(*FUNCTIONS[name].ends(x), 2, FREE, exact)
        return y.lo, y.hi

    lo, hi = f("tanh", one(20.0))
    assert lo[0] > 1 - 2.1 * 2.0**-24
    assert hi[0] < 1 + 2.1 * 2.0**-24
    x = box(float(np.nextafter(np.float32(np.log(2)), np.float32(0))), 0.6931473)
    assert f("exp", x)[0][0] <= 2 - 2 * 2.0**-22
    assert [v[0] for v in f("exp", one(0.0))] == [1.0, 1.0]
