"""Ranges of sums and variances against real fp32 executions of every tree and many orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from contract.endpoints import MAY, ONLY, TINY, Array, Freedom, Interval, point
from contract.readings.orders import ORDERS, ordered_sum
from contract.readings.range import RangeReading
from contract.sums import U, exact_rows, gamma, sum_range, variance_range

FREE = Freedom()
KEPT = Freedom(ftz=False)
INF = np.inf
Tree = Any


def trees(leaves: tuple[int, ...]) -> Iterator[Tree]:
    """Every binary tree over the leaves, up to swapping the two terms of an addition: 945 of six."""
    if len(leaves) == 1:
        yield leaves[0]
        return
    first, rest = leaves[0], leaves[1:]
    for size in range(len(rest)):
        for beside in itertools.combinations(rest, size):
            other = tuple(leaf for leaf in rest if leaf not in beside)
            for left in trees((first, *beside)):
                for right in trees(other):
                    yield left, right


ALL_TREES = list(trees(tuple(range(6))))


def depth_of(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(depth_of(side) for side in tree)


def run(tree: Tree, rows: Array, flush: float, known: dict[Tree, Array] | None = None) -> Array:
    """fp32 sums of the rows along the tree; results below `flush` become a zero of their sign."""
    known = {} if known is None else known
    if tree not in known:
        if isinstance(tree, int):
            s = rows[:, tree].astype(np.float32)
        else:
            with np.errstate(all="ignore"):
                s = run(tree[0], rows, flush, known) + run(tree[1], rows, flush, known)
        known[tree] = np.where(np.abs(s) < np.float32(flush), np.copysign(np.float32(0), s), s)
    return known[tree]


def order(z: Array) -> Array:
    bits = np.ascontiguousarray(z, np.float64).view(np.int64)
    return np.where(bits < 0, -1 - (bits & np.int64(2**63 - 1)), bits)


def holds(x: Interval, values: Array) -> Array:
    values = np.asarray(values, np.float64).reshape(x.shape)
    nan = np.zeros(x.shape, np.uint8) if x.nan is None else x.nan
    inside = (order(x.lo) <= order(values)) & (order(values) <= order(x.hi)) & (nan != ONLY)
    return np.asarray(np.where(np.isnan(values), nan > 0, inside))


def kinds_of_rows(n: int, count: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shape = (count, n)
    sign = rng.choice([-1.0, 1.0], shape)

    def f32(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(x, np.float32).astype(np.float64)

    bits = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        bits = bits.astype(np.float64)
    window = sign * np.exp2(rng.uniform(-28, 0, shape))
    cancelling = f32(window)
    cancelling[:, n // 2 :] = -cancelling[:, : n - n // 2] * (
        1 + (rng.random((count, 1)) < 0.5) * U
    )
    return {
        "bits": bits,
        "window": f32(window),
        "positive": f32(np.exp2(rng.uniform(-26, 2, shape))),
        "cancelling": f32(cancelling),
        "overflow": f32(sign * np.exp2(rng.uniform(124, 128, shape))),
        "same sign overflow": f32(np.exp2(rng.uniform(125, 126.5, shape))),
        "subnormal": f32(sign * np.exp2(rng.uniform(-149, -124, shape))),
        "zeros": np.where(rng.random(shape) < 0.7, np.copysign(0.0, sign), sign * 2.0**-140),
        "specials": rng.choice([INF, -INF, np.nan, 1.0, -3e38, 3e38, 0.0], shape, p=[0.05, 0.05, 0.05, 0.4, 0.15, 0.15, 0.15]),
        "extreme": f32(np.where(np.arange(n) == 0, 1.0, U * rng.choice([1, 1.001, 0.999, -0.5], shape))),
        "equal": f32(np.repeat(rng.uniform(1, 2, (count, 1)), n, 1)),
    }  # fmt: skip


def test_there_are_945_trees_of_six_terms() -> None:
    assert len(ALL_TREES) == len(set(map(str, ALL_TREES))) == 945


@pytest.mark.parametrize("free", [FREE, KEPT], ids=["ftz", "kept"])
@pytest.mark.parametrize("kind", kinds_of_rows(1, 1))
def test_every_tree_of_six_terms_is_inside_at_its_depth(kind: str, free: Freedom) -> None:
    rows = kinds_of_rows(6, 120)[kind]
    x = point(rows, narrow=True, raw=True)
    ranges = {d: sum_range(x, 1, d, free) for d in (3, 4, 5)}
    for flush in (0.0, TINY) if free.ftz else (0.0,):
        known: dict[Tree, Array] = {}
        for depth, allowed in ranges.items():
            got = [run(tree, rows, flush, known) for tree in ALL_TREES if depth_of(tree) == depth]
            every = Interval(
                *(np.broadcast_to(v[:, 0], (len(got), len(rows))) for v in (allowed.lo, allowed.hi))
            )
            every.nan = (
                None if allowed.nan is None else np.broadcast_to(allowed.nan[:, 0], every.shape)
            )
            assert holds(every, np.array(got)).all()


def test_three_quarters_of_the_bound_are_reached() -> None:
    rows = kinds_of_rows(6, 40)["extreme"]
    worst = 0.0
    exact = [sum(map(Fraction, row), Fraction(0)) for row in rows]
    size = np.abs(rows).sum(axis=1)
    known: dict[Tree, Array] = {}
    for tree in ALL_TREES:
        got = run(tree, rows, 0.0, known)
        error = np.array(
            [abs(float(Fraction(float(g)) - e)) for g, e in zip(got, exact, strict=True)]
        )
        worst = max(worst, float((error / (gamma(depth_of(tree)) * size)).max()))
    assert 0.75 < worst <= 1.0


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_few_terms_is_inside(n: int) -> None:
    for rows in kinds_of_rows(n, 300, n).values():
        x = point(rows, narrow=True, raw=True)
        y = sum_range(x, 1, None, FREE)
        line: Tree = 0
        for leaf in range(1, n):
            line = (line, leaf)
        for permuted in itertools.permutations(range(n)):
            for flush in (0.0, TINY):
                assert holds(y, run(line, rows[:, permuted], flush)).all()
        # an accumulator that starts from +0
        with np.errstate(all="ignore"):
            started = rows.astype(np.float32)[:, 0] + np.float32(0)
            for leaf in range(1, n):
                started = started + rows.astype(np.float32)[:, leaf]
        assert holds(y, started).all()


def test_rows_declared_exact_give_the_same_bits_in_fifty_orders() -> None:
    rng = np.random.default_rng(1)
    q = np.exp2(rng.integers(-100, 90, (200, 1)).astype(np.float64))
    rows = rng.integers(-(2**17), 2**17, (200, 64)).astype(np.float64) * q
    y = sum_range(point(rows, narrow=True), 1, None, FREE)
    proven = (y.lo == y.hi)[:, 0]
    assert proven.sum() > 100
    for turn in range(50):
        name = ORDERS[turn % len(ORDERS)]
        got = ordered_sum(rows[proven], name, None, np.random.default_rng(turn))
        assert (got == y.lo[proven, 0]).all()


def test_near_misses_of_the_exact_rule_are_not_exact() -> None:
    whole = np.full((1, 4), 2.0**22)
    cases = {
        "sum of magnitudes 2^24 q": (whole, True),
        "one q more": (whole + np.array([0, 0, 0, 1.0]), False),
        "one q less, and a term of q / 2": (whole - np.array([0, 0, 0, 0.5]), False),
        "signs do not help": (whole * [1, -1, 1, -1] + [0, 0, 0, 1.0 - 2], False),
    }
    for name, (row, want) in cases.items():
        for scale in (1.0, 2.0**-140, 2.0**90):
            x = point(row * scale, narrow=True, raw=True)
            size = np.abs(x.lo).sum(axis=1, keepdims=True)
            assert exact_rows(x, size, 1, KEPT).all() == want, name
    tiny = point(np.full((1, 4), 2.0**-130), narrow=True)
    size = tiny.lo.sum(axis=1, keepdims=True)
    assert exact_rows(tiny, size, 1, KEPT).all()
    assert not exact_rows(tiny, size, 1, FREE).any()
    assert not exact_rows(tiny.map(lambda v: v * 2.0**-25), size * 2.0**-25, 1, KEPT).any()
    start = point(whole, narrow=True)
    assert exact_rows(start, size * 0 + 2.0**24, 1, KEPT).all()
    assert not exact_rows(start, size * 0 + 2.0**24, 1, KEPT, start=1.0).any()
    late = point(np.append(np.full((1, 20), 2.0**18), [[0.5]], axis=1), narrow=True)
    assert not exact_rows(late, size * 0 + 20 * 2.0**18 + 0.5 + 2.0**23, 1, KEPT).any()
    odd = point(whole - np.array([0, 0, 0, 1.0]), narrow=True)
    assert exact_rows(odd, size * 0 + 2.0**24 - 1, 1, KEPT).all()
    assert not exact_rows(odd, size * 0 + 2.0**24 - 1, 1, KEPT, bits=23).any()
    range_of_terms = Interval(whole, whole + np.array([0, 0, 0, 1.0]))
    assert not exact_rows(range_of_terms, size * 0 + 2.0**24, 1, KEPT).any()


def test_a_finite_sum_that_overflows_in_some_order() -> None:
    big = 2.0**127
    y = sum_range(
        point(np.array([[big, big, -big, 1.0], [big, -big, 1.0, 1.0]]), narrow=True), 1, None, FREE
    )
    # plus alone reaches 2^128, minus does not: infinity, and no NaN
    assert y.hi[0, 0] == INF
    assert y.lo[0, 0] > 0
    assert y.nan is None
    assert np.isfinite([y.lo[1, 0], y.hi[1, 0]]).all()
    y = sum_range(point(np.array([[big, big, -big, -big]]), narrow=True), 1, None, FREE)
    assert (y.lo[0, 0], y.hi[0, 0]) == (-INF, INF)
    assert y.nan is not None
    assert y.nan[0, 0] == MAY
    edge = np.array([[2.0**128 - 2.0**104, 2.0**102, 0.0]])
    assert sum_range(point(edge, narrow=True), 1, None, FREE).hi[0, 0] == INF


def test_infinite_terms() -> None:
    terms = Interval(np.array([[1.0, 2.0], [-INF, 1.0], [INF, 1.0], [INF, -INF]]),
                     np.array([[INF, 3.0], [INF, 1.0], [INF, 1.0], [INF, 1.0]]))  # fmt: skip
    y = sum_range(terms, 1, None, FREE)
    assert y.nan is not None
    # a finite lower end stays where another end is infinite
    assert 2.99 < y.lo[0, 0] <= 3
    assert y.hi[:3, 0].tolist() == [INF] * 3
    assert (y.lo[1, 0], y.lo[2, 0]) == (-INF, INF)
    assert y.nan[:, 0].tolist() == [0, MAY, 0, MAY] or y.nan[:, 0].tolist() == [0, 0, 0, MAY]
    only = sum_range(point(np.array([[INF, -INF]]), narrow=True), 1, None, FREE)
    assert only.nan is not None
    assert only.nan[0, 0] == ONLY


def test_rows_do_not_change_each_other() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((4, 9)).astype(np.float32).astype(np.float64)
    rows[0], rows[1] = np.abs(rows[0]), np.abs(rows[1]) * 2.0**-140
    rows[2, 3], rows[3, 1] = -0.0, 3e38
    rows = rows.astype(np.float32).astype(np.float64)
    together = sum_range(point(rows, narrow=True, raw=True), 1, None, FREE)
    for i, row in enumerate(rows):
        alone = sum_range(point(row[None], narrow=True, raw=True), 1, None, FREE)
        assert (order(alone.lo)[0], order(alone.hi)[0]) == (
            order(together.lo)[i],
            order(together.hi)[i],
        )


def test_sums_of_non_negative_terms_are_never_negative() -> None:
    rng = np.random.default_rng(2)
    rows = np.abs(kinds_of_rows(40, 200)["window"])
    rows[:, 0] = -1.0
    rows[100:, 0] = 1.0
    rows[150:] *= 2.0**-140
    rows = rows.astype(np.float32).astype(np.float64)
    y = sum_range(point(rows[rng.permutation(200)], narrow=True, raw=True), 1, None, FREE)
    assert (sum_range(point(rows[100:], narrow=True, raw=True), 1, None, FREE).lo >= 0).all()
    assert (y.lo < 0).sum() <= 100


@pytest.mark.parametrize(
    ("terms", "lo", "hi"),
    [
        ([-0.0, -0.0], -0.0, 0.0),
        ([-0.0], -0.0, 0.0),
        ([0.0], 0.0, 0.0),
        ([0.0, 0.0], 0.0, 0.0),
        ([0.0, -0.0], 0.0, 0.0),
        ([1.0, -1.0], -0.0, 0.0),
    ],
)
def test_signs_of_zero_sums(terms: list[float], lo: float, hi: float) -> None:
    y = sum_range(point(np.array([terms]), narrow=True), 1, None, FREE)
    assert order(y.lo)[0, 0] == order(np.array(lo))
    assert order(y.hi)[0, 0] == order(np.array(hi))


def test_one_term_is_itself() -> None:
    x = point(np.array([[3.5], [2.0**-140]]), narrow=True, raw=True)
    y = sum_range(x, 1, None, FREE)
    assert (y.lo[0, 0], y.hi[0, 0]) == (3.5, 3.5)
    assert (y.lo[1, 0], y.hi[1, 0]) == (0.0, 2.0**-140)


def two_pass(rows: Array, rng: np.random.Generator, flush: float) -> Array:
    """fp32 mean of squared deviations, both sums in any order."""

    def z(v: Array) -> Array:
        v = v.astype(np.float32)
        return np.where(np.abs(v) < np.float32(flush), np.copysign(np.float32(0), v), v)

    n = np.float32(rows.shape[1])
    with np.errstate(all="ignore"):
        mean = z(z(ordered_sum(rows, str(rng.choice(ORDERS[:-1])), None, rng)) / n)
        deviation = z(z(rows) - mean[:, None])
        squares = z(deviation * deviation).astype(np.float64)
        total = z(ordered_sum(squares, str(rng.choice(ORDERS[:-1])), None, rng))
        return z(total / n) if rng.random() < 0.5 else z(total * (np.float32(1) / n))


def two_pass_range(rows: Array, free: Freedom = FREE) -> Interval:
    reading = RangeReading.__new__(RangeReading)
    reading.free = free
    x = reading.load(rows, narrow=True)
    total, n = reading._sum(x, 1, None), reading.const(float(rows.shape[1]))
    mean = reading._union(
        reading.div(total, n), reading.mul(total, reading.div(reading.const(1.0), n))
    )
    return reading._variance(x, mean, 1, None)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 64])
def test_two_pass_variances_in_any_order_are_inside(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = np.concatenate(list(kinds_of_rows(n, 60, n).values()))
    near = rng.standard_normal((200, n))
    level = 100 * (1 + 2.0**-22 * rng.integers(-2, 3, (200, n)))
    edges = (
        np.exp2(rng.choice([-75, -64, -62, -50, -37, -36, -35, 49, 50, 51, 62, 64], (200, 1)))
        * near
    )
    rows = np.concatenate([rows, near, near + 100, level, edges])
    with np.errstate(all="ignore"):
        rows = rows.astype(np.float32).astype(np.float64)
    for free, flushes in ((FREE, (0.0, TINY)), (KEPT, (0.0,))):
        y = two_pass_range(rows, free)
        for turn in range(12):
            got = two_pass(rows, rng, flushes[turn % len(flushes)])
            assert holds(y, got).all(), rows[~holds(y, got)[:, 0]][:1]


def test_the_closed_variance_falls_back_row_by_row() -> None:
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((4, 12)).astype(np.float32).astype(np.float64)
    rows[1] *= 2.0**60
    rows[2] *= 2.0**-60
    rows[2, 3] = np.nan
    together = two_pass_range(rows)
    for i, row in enumerate(rows):
        alone = two_pass_range(row[None])
        assert (alone.lo[0, 0], alone.hi[0, 0]) == (together.lo[i, 0], together.hi[i, 0])
    rows[2, 3] = 0.0
    x = point(rows, narrow=True)
    mean = Interval(rows.mean(1, keepdims=True) - 1e-6, rows.mean(1, keepdims=True) + 1e-6)
    assert variance_range(x, mean, 1, None, FREE) is None
    assert (
        variance_range(x.map(lambda v: v[:1]), mean.map(lambda v: v[:1]), 1, None, FREE) is not None
    )
