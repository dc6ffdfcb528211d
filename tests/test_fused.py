"""Fused multiply-add: one rounding, against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from contract.exactround import round_fraction
from contract.fused import fma_f32, fused_multiply_add, sum_to_odd
from contract.interval import MAY, ONLY, Array, Freedom, Interval, add, mul, point, union

FREE = Freedom()
INF = np.inf


def one(*values: float) -> list[Interval]:
    return [point(np.array([v]), narrow=True, raw=True) for v in values]


def fused(operands: list[Interval], free: Freedom) -> Interval:
    a, b, c = operands
    return fused_multiply_add(a, b, c, free)


def hard_triples(rng: Any, count: int) -> tuple[Array, Array, Array]:
    """Products of 25 bits that are ties of fp32, with addends far below; cancellations; subnormal results."""
    a, b = (rng.integers(2**11, 2**13, count) * 2.0 + 1 for _ in range(2))
    kind = rng.integers(0, 5, count)
    # odd and between 2^24 and 2^25: a tie
    a, b = (np.where(kind > 2, rng.integers(2048, 2895, count) * 2.0 + 1, v) for v in (a, b))
    p = a * b
    ulp = np.exp2(np.floor(np.log2(p)) - 23)
    tiny = ulp * np.exp2(-rng.integers(2.0, 60, count))
    c = np.where(kind == 0, tiny, -p + tiny)
    a = np.where(kind == 2, 1 + 2.0**-23 * rng.integers(0, 2**23, count), a)
    c = np.where(kind > 2, np.exp2(-rng.integers(4.0, 40, count)), c)
    down = np.exp2(-rng.integers(60.0, 88, count) * (kind % 2 * rng.integers(0, 2, count)))
    a, b, c = a * down, b * down, c * rng.choice([-1, 1], count) * down * down
    a, b, c = (x.astype(np.float32).astype(np.float64) for x in (a, b, c))
    return a, b, c


def test_one_rounding_where_two_go_wrong() -> None:
    a, b, c = (np.array([v]) for v in (24929.0, 673.0, 2.0**-30))
    naive = (a * b + c).astype(np.float32)
    assert naive == 16777216.0
    assert fma_f32(a, b, c) == 16777218.0
    x = fused(one(24929.0, 673.0, 2.0**-30), Freedom(wide=False))
    assert x.lo == x.hi == 16777218.0


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_hard_triples_round_as_fractions_do(seed: int) -> None:
    a, b, c = hard_triples(np.random.default_rng(seed), 10_000)
    with np.errstate(all="ignore"):
        naive = (a * b + c).astype(np.float32).astype(np.float64)
    single = fma_f32(a, b, c)
    real = [Fraction(p) * Fraction(q) + Fraction(r) for p, q, r in zip(a, b, c, strict=True)]
    want = np.array([round_fraction(x, "fp32") for x in real])
    assert np.array_equal(single, want)
    assert (naive != want).sum() > 50
    assert (np.abs(want) < 2.0**-126).sum() > 500
    operands = [point(v, narrow=True) for v in (a, b, c)]
    narrow = fused(operands, Freedom(wide=False, ftz=False))
    assert np.array_equal(narrow.lo, want)
    assert np.array_equal(narrow.hi, want)
    wide = fused(operands, Freedom(ftz=False))
    for lo, hi, x, f in zip(wide.lo, wide.hi, real, want, strict=True):
        assert Fraction(lo) <= min(x, Fraction(f))
        assert Fraction(hi) >= max(x, Fraction(f))
        assert Fraction(hi) - Fraction(lo) <= abs(x - Fraction(f)) + abs(x) / 2**50


def test_the_sum_is_rounded_to_odd() -> None:
    s, inexact = sum_to_odd(
        np.array([1.0, 1.0, 1.0, 3.0]), np.array([2.0**-80, -(2.0**-80), 1.0, 4])
    )
    assert s.tolist() == [1 + 2.0**-52, 1 - 2.0**-53, 2.0, 7.0]
    assert inexact.tolist() == [True, True, False, False]


def test_a_product_that_underflows_keeps_its_sign_when_fused_and_loses_it_separately() -> None:
    a, b, c = one(-(2.0**-100), 2.0**-60, 0.0)
    together = fused([a, b, c], Freedom(wide=False, ftz=False))
    assert np.signbit(together.lo)
    assert np.signbit(together.hi)
    separate = add(mul(a, b, Freedom(wide=False)), c, Freedom(wide=False))
    assert not np.signbit(separate.hi)
    either = union(together, separate)
    assert np.signbit(either.lo)
    assert not np.signbit(either.hi)


@pytest.mark.parametrize(
    ("a", "b", "c", "lo", "hi", "nan"),
    [
        # the product meets its own opposite only when it is kept finite: separate overflows first
        ((3e38, 3e38), (3e38, 3e38), (-INF, -INF), -INF, -INF, 0),
        ((INF, INF), (1, 1), (-INF, -INF), None, None, ONLY),
        ((0, 0), (INF, INF), (1, 1), None, None, ONLY),
        ((0, 0), (-INF, INF), (1, 1), 1, 1, MAY),
        ((-1, 1), (INF, INF), (0, 0), -INF, INF, MAY),
        ((1, INF), (1, 1), (-INF, -INF), -INF, -INF, MAY),
        ((1, INF), (1, 1), (-INF, 0), -INF, INF, MAY),
        ((-INF, INF), (1, 1), (INF, INF), INF, INF, MAY),
    ],
)
def test_infinities_of_a_fused_step(
    a: tuple[float, float],
    b: tuple[float, float],
    c: tuple[float, float],
    lo: float | None,
    hi: float | None,
    nan: int,
) -> None:
    made = [Interval(np.array([float(p)]), np.array([float(q)]), narrow=True) for p, q in (a, b, c)]
    x = fused(made, FREE)
    state = 0 if x.nan is None else int(x.nan[0])
    assert state == nan
    if lo is not None:
        assert (x.lo[0], x.hi[0]) == (lo, hi)


def test_wide_operands_enclose_the_real_value() -> None:
    """Operands of 53 bits: the float64 product is rounded, and cancels against the addend."""
    rng = np.random.default_rng(3)
    a, b = rng.uniform(1, 2, (2, 3000))
    c = -(a * b) * (1 + rng.choice([0, 2.0**-50, 2.0**-30, 2.0**-10], 3000))
    x = fused([Interval(v, v) for v in (a, b, c)], FREE)
    for p, q, r, lo, hi in zip(a, b, c, x.lo, x.hi, strict=True):
        real = Fraction(p) * Fraction(q) + Fraction(r)
        assert Fraction(lo) <= real <= Fraction(hi)
        assert lo <= float(np.float32(float(real))) <= hi


def test_a_nan_operand_makes_the_fused_step_nan() -> None:
    for place in range(3):
        operands = one(1.0, 2.0, 3.0)
        operands[place] = one(np.nan)[0]
        state = fused(operands, FREE).nan
        assert state is not None
        assert state[0] == ONLY


def test_an_exact_product_and_a_wide_addend_are_rounded_once() -> None:
    """Operands of 24 bits, an addend of 53: where the sum is exact the step is that value, elsewhere as fractions say."""
    rng = np.random.default_rng(4)
    a, b = rng.uniform(1, 2, (2, 3000)).astype(np.float32).astype(np.float64)
    c = -(a * b) * (1 + rng.choice([0, 2.0**-50, 2.0**-30, 2.0**-10], 3000))
    x = fused([point(a, narrow=True), point(b, narrow=True), Interval(c, c)], Freedom(wide=False))
    real = [Fraction(p) * Fraction(q) + Fraction(r) for p, q, r in zip(a, b, c, strict=True)]
    want = np.array([round_fraction(v, "fp32") for v in real])
    assert np.array_equal(x.lo, want)
    assert np.array_equal(x.hi, want)
    wide = fused([point(a, narrow=True), point(b, narrow=True), Interval(c, c)], FREE)
    exact = np.array([v == Fraction(f) for v, f in zip(real, want, strict=True)])
    assert exact.sum() > 500
    assert np.array_equal((wide.lo == want) & (wide.hi == want), exact)
