"""Range arithmetic against single fp32 operations of NumPy, exact fractions and brute force over small boxes.

What one element may be is a set: the fp32 result, the real value (wide), and both with subnormal operands and results
flushed. All of it must lie in the interval, and the NaN state must say exactly whether none, some or all of it is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from contract import interval
from contract.formats import decode
from contract.fused import fma_f32, fused_multiply_add
from contract.interval import MAY, ONLY, TINY, Array, Freedom, Interval, point

FREE = Freedom()
EXACT = Freedom(wide=False, ftz=False)
INF = np.inf
# Zeros, the ends of the subnormals and normals, 24-bit boundaries, the largest value and its neighbours.
SPECIAL = [
    0.0, 2.0**-149, 3 * 2.0**-149, 2.0**-127, TINY - 2.0**-149, TINY, TINY + 2.0**-149, 2.0**-125,
    2.0**-75, 2.0**-63, 2.0**-24, 0.5, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 1.5, 3.0, 2.0**22 + 0.5,
    2.0**24 - 1, 2.0**24, 2.0**24 + 2, 24929.0, 673.0, 2.0**63, 2.0**64, 2.0**126, 2.0**127,
    2.0**128 - 2.0**105, 2.0**128 - 2.0**104, INF,
]  # fmt: skip
OPERATIONS: dict[str, tuple[Callable[..., Interval], Any]] = {
    "add": (interval.add, np.add),
    "mul": (interval.mul, np.multiply),
    "div": (interval.div, np.divide),
}


def order(z: Array) -> Array:
    """Integers in the order of float64 values, -0 below +0."""
    bits = np.ascontiguousarray(z, np.float64).view(np.int64)
    return np.where(bits < 0, -1 - (bits & np.int64(2**63 - 1)), bits)


def grid(size: int, seed: int = 0, *, nan: bool = True) -> Array:
    """Special fp32 values of both signs and random bit patterns, ascending, NaN last."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 2**32, 4 * size, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        drawn = drawn.astype(np.float64)
    values = np.concatenate([SPECIAL, np.negative(SPECIAL), drawn[np.isfinite(drawn)]])[:size]
    values = values[np.argsort(order(values))]
    return np.append(values, np.nan) if nan else values


def flush(z: Array) -> Array:
    return np.where(np.abs(z) < TINY, np.copysign(0.0, z), z)


def outcomes(f: Any, *operands: Array) -> list[Array]:
    """fp32 results of one operation, without flush, with flushed operands, and with flushed results."""
    found = []
    with np.errstate(all="ignore"):
        for variant in itertools.product((False, True), repeat=len(operands)):
            read = [flush(x) if on else x for x, on in zip(operands, variant, strict=True)]
            result = f(*(np.asarray(x, np.float32) for x in read)).astype(np.float64)
            found += [result, flush(result)]
    return found


def holds(x: Interval, values: Array) -> Array:
    """Which values the interval allows."""
    nan = np.zeros(x.shape, np.uint8) if x.nan is None else x.nan
    bad = np.isnan(values)
    inside = (order(x.lo) <= order(values)) & (order(values) <= order(x.hi)) & (nan != ONLY)
    return np.asarray(np.where(bad, nan > 0, inside))


def nan_state(results: list[Array]) -> Array:
    bad = np.array([np.isnan(r) for r in results])
    return np.where(bad.all(axis=0), ONLY, np.where(bad.any(axis=0), MAY, 0))


def state_of(x: Interval) -> Array:
    return np.zeros(x.shape, np.uint8) if x.nan is None else np.broadcast_to(x.nan, x.shape)


def operand(values: Array) -> Interval:
    return point(values, narrow=True, raw=True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_million_pairs_lie_inside_with_the_right_nan_state(name: str) -> None:
    ours, theirs = OPERATIONS[name]
    values = grid(1024)
    a, b = np.meshgrid(values, values)
    x = ours(operand(a), operand(b), FREE)
    results = outcomes(theirs, a, b)
    for result in results:
        assert holds(x, result).all()
    assert (state_of(x) == nan_state(results)).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_values_without_freedoms_are_the_fp32_result_bit_for_bit(name: str) -> None:
    ours, theirs = OPERATIONS[name]
    a, b = np.meshgrid(grid(700, 1), grid(700, 2))
    x = ours(operand(a), operand(b), EXACT)
    with np.errstate(all="ignore"):
        want = theirs(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)
    number = ~np.isnan(want)
    assert (order(x.lo) == order(want))[number].all()
    assert (order(x.hi) == order(want))[number].all()
    assert (state_of(x) == np.where(number, 0, ONLY)).all()


def exact(name: str, a: float, b: float) -> Fraction:
    p, q = Fraction(a), Fraction(b)
    return p + q if name == "add" else p * q if name == "mul" else p / q


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_real_value_lies_inside_and_the_ends_are_close_to_it(name: str) -> None:
    a, b = np.meshgrid(grid(70, 3, nan=False), grid(70, 4, nan=False))
    keep = np.isfinite(a) & np.isfinite(b) & (b != 0)
    a, b = a[keep], b[keep]
    ours, theirs = OPERATIONS[name]
    x = ours(operand(a), operand(b), Freedom(ftz=False))
    with np.errstate(all="ignore"):
        rounded = theirs(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)
    for p, q, lo, hi, f in zip(a, b, x.lo, x.hi, rounded, strict=True):
        real = exact(name, float(p), float(q))
        low, high = (
            (min(real, Fraction(f)), max(real, Fraction(f))) if np.isfinite(f) else (real,) * 2
        )
        slack = abs(real) / 2**51 + Fraction(2) ** -1000
        assert np.isneginf(lo) or low - slack <= Fraction(lo) <= low
        assert np.isposinf(hi) or high <= Fraction(hi) <= high + slack
        assert np.isfinite(lo) or f == lo
        assert np.isfinite(hi) or f == hi


@pytest.mark.parametrize("name", OPERATIONS)
def test_exact_results_are_one_value(name: str) -> None:
    n = np.arange(-600.0, 600.0)
    a, b = np.meshgrid(n, n[n != 0])
    x = OPERATIONS[name][0](operand(a * b if name == "div" else a), operand(b), FREE)
    assert (order(x.lo) == order(x.hi)).all()


def boxes(rng: np.random.Generator, values: Array, count: int) -> tuple[Interval, Array, Array]:
    """Random intervals between two values, and the indices of their ends."""
    i, j = np.sort(rng.integers(0, len(values), (2, count)), axis=0)
    # a third narrow, a tenth one value
    j = np.where(rng.random(count) < 0.33, np.minimum(i + 3, j), j)
    j = np.where(rng.random(count) < 0.1, i, j)
    return Interval(values[i], values[j], narrow=True, raw=True), i, j


@pytest.mark.parametrize("name", [*OPERATIONS, "fma", "square"])
def test_members_of_boxes_give_members_of_the_result(name: str) -> None:
    rng = np.random.default_rng(5)
    values = grid(300, 6, nan=False)
    made = [boxes(rng, values, 60_000) for _ in range(3)]
    a, b, c = (box[0] for box in made)
    if name == "fma":
        x = fused_multiply_add(a, b, c, FREE)
    elif name == "square":
        x = interval.square(a, FREE)
    else:
        x = OPERATIONS[name][0](a, b, FREE)
    for turn in range(6):
        picks: list[Array] = [rng.integers(i, j + 1) for _, i, j in made]
        if turn < 2:
            picks = [(i, j)[(turn + k) % 2] for k, (_, i, j) in enumerate(made)]
        u, v, w = (values[p] for p in picks)
        with np.errstate(all="ignore"):
            if name == "fma":
                results = [fma_f32(u, v, w), flush(fma_f32(flush(u), flush(v), flush(w)))]
            elif name == "square":
                results = [*outcomes(np.square, u), u * u]
            else:
                results = [*outcomes(OPERATIONS[name][1], u, v), OPERATIONS[name][1](u, v)]
        for result in results:
            assert holds(x, result).all()


SMALL = np.array([-INF, -2.0, -1.0, -(2.0**-140), -0.0, 0.0, 2.0**-140, 1.0, 3.0, INF])
PAIRS = [(i, j) for i in range(len(SMALL)) for j in range(i, len(SMALL))]


def union_model(a: Array, b: Array) -> Array:
    return np.stack([a + 0 * b, b + 0 * a])


def extreme_model(f: Any) -> Any:
    def both_zeros(a: Array, b: Array) -> Array:
        zero = (a == 0) & (b == 0)
        return np.stack([np.where(zero, a, f(a, b)), np.where(zero, b, f(a, b))])

    return both_zeros


MODELS: dict[str, tuple[Callable[..., Interval], Any]] = {
    "add": (lambda a, b: interval.add(a, b, EXACT), np.add),
    "mul": (lambda a, b: interval.mul(a, b, EXACT), np.multiply),
    "div": (lambda a, b: interval.div(a, b, EXACT), np.divide),
    "maximum": (interval.maximum, extreme_model(np.maximum)),
    "minimum": (interval.minimum, extreme_model(np.minimum)),
    "union": (interval.union, lambda a, b: np.stack(np.broadcast_arrays(a, b))),
    "where": (
        lambda a, b: interval.where(np.zeros(a.shape, bool), np.ones(a.shape, bool), a, b),
        lambda a, b: np.stack(np.broadcast_arrays(a, b)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_small_boxes_by_brute_force(name: str) -> None:
    """Every box over ten values with every NaN state: ends and state are those of the set of results."""
    ours, theirs = MODELS[name]
    members = np.append(SMALL, np.nan)
    with np.errstate(all="ignore"):
        narrow = np.asarray(theirs(members[:, None], members[None, :])).astype(np.float32)
    table = narrow.astype(np.float64).reshape(-1, len(members), len(members))
    sets = [
        (i, j, s)
        for i, j in PAIRS
        for s in (0, MAY, ONLY)
        if s == 0 or (i == j and (s == MAY or i == 0))
    ]
    sets += [(0, 9, MAY), (2, 7, MAY), (3, 4, MAY)]
    lo, hi, state = (np.array(v) for v in zip(*sets, strict=True))
    every = [Interval(SMALL[lo], SMALL[hi], state.astype(np.uint8), narrow=True)]
    a = every[0].map(lambda v: np.repeat(v, len(sets)))
    b = every[0].map(lambda v: np.tile(v, len(sets)))
    x = ours(a, b)
    index = np.arange(len(members))
    inside = (index >= lo[:, None]) & (index <= hi[:, None]) & (state[:, None] != ONLY)
    inside[:, -1] = state > 0
    ranks, bad = order(table), np.isnan(table)
    for k, (p, q) in enumerate(itertools.product(range(len(sets)), repeat=2)):
        chosen = table[:, inside[p]][:, :, inside[q]]
        wrong = bad[:, inside[p]][:, :, inside[q]]
        rank = ranks[:, inside[p]][:, :, inside[q]][~wrong]
        got = state_of(x)[k]
        want = ONLY if wrong.all() else MAY if wrong.any() else 0
        assert got == want, (name, sets[p], sets[q], chosen)
        if rank.size:
            assert order(x.lo[k : k + 1])[0] <= rank.min(), (name, sets[p], sets[q])
            assert order(x.hi[k : k + 1])[0] >= rank.max(), (name, sets[p], sets[q])
        if rank.size and not (name == "div" and lo[q] <= 4 and hi[q] >= 5):
            assert order(x.lo[k : k + 1])[0] == rank.min(), (name, sets[p], sets[q])
            assert order(x.hi[k : k + 1])[0] == rank.max(), (name, sets[p], sets[q])


@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_negation_absolute_value_and_square_of_every_16_bit_pattern(fmt: str) -> None:
    values = decode(np.arange(1 << 16), fmt)
    x = operand(values)
    bad = np.isnan(values)
    for got, want in ((interval.neg(x), -values), (interval.absolute(x), np.abs(values))):
        assert (order(got.lo) == order(want))[~bad].all()
        assert got.same
        assert (state_of(got) == np.where(bad, ONLY, 0)).all()
    x = interval.square(x, FREE)
    for result in outcomes(np.square, values):
        assert holds(x, result).all()
    assert holds(x, values * values).all()
    assert (x.lo >= 0).all()


def test_a_step_beyond_float64_is_neither_infinite_nor_zero() -> None:
    big, small = Interval(*[np.array([2.0**600])] * 2), Interval(*[np.array([2.0**-600])] * 2)
    assert interval.mul(big, big, FREE).lo < INF
    assert interval.square(big, FREE).lo < INF
    assert interval.mul(small, small, FREE).hi > 0
    assert interval.mul(small, interval.neg(small), FREE).lo < 0
    assert interval.square(small, FREE).hi > 0
    assert interval.div(small, big, FREE).hi > 0
    assert interval.div(big, small, FREE).lo < INF


def test_a_step_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal(4000).astype(np.float32).astype(np.float64) for _ in range(2))
    for ours, _ in OPERATIONS.values():
        alone = ours(operand(a), operand(b), FREE)
        beside = ours(operand(np.append(a, [0.0, INF])), operand(np.append(b, [1.0, 1.0])), FREE)
        assert (alone.lo == beside.lo[:-2]).all()
        assert (alone.hi == beside.hi[:-2]).all()


def test_subnormals_stay_raw_through_moves_and_are_flushed_by_the_next_step() -> None:
    x = operand(np.array([2.0**-140]))
    one = point(np.array([1.0]), narrow=True)
    scale = point(np.array([2.0**30]), narrow=True)
    known = np.array([True])
    moved = [
        x.map(lambda v: v[:]),
        interval.neg(interval.neg(x)),
        interval.absolute(Interval(x.lo, x.hi.copy(), narrow=True, raw=True)),
        interval.where(known, None, x, one),
        interval.union(x, one),
        interval.minimum(x, one),
    ]
    for value in moved:
        assert interval.mul(value, scale, FREE).lo[0] == 0.0


def test_inputs_and_results_around_the_smallest_normal_may_be_flushed() -> None:
    a, b = point(np.array([TINY * 1.5]), narrow=True), point(np.array([-TINY]), narrow=True)
    x = interval.add(a, b, FREE)
    assert holds(x, np.array([0.0])).all()
    assert holds(x, np.array([TINY / 2])).all()
    # tininess before rounding: the product is below 2^-126, its fp32 rounding is not
    a, b = point(np.array([1 - 2.0**-24]), narrow=True), point(np.array([TINY]), narrow=True)
    assert holds(interval.mul(a, b, Freedom(wide=False)), np.array([0.0, TINY])[:, None]).all()


def test_the_grid_holds_fp32_values() -> None:
    values = grid(1024)
    assert np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True)


def test_a_quotient_is_as_exact_beside_an_uncertain_one_as_alone() -> None:
    scale = point(np.array(2.0**-5), narrow=True)
    lo = np.array([1.484375, 1.0, -3.0])
    alone = interval.div(point(lo, narrow=True), scale, FREE)
    beside = interval.div(
        Interval(lo, lo + np.array([0.0, 2.0**-7, 0.0]), narrow=True), scale, FREE
    )
    assert alone.lo.tolist() == beside.lo.tolist() == [47.5, 32.0, -96.0]
    assert beside.hi.tolist() == [47.5, 32.25, -96.0]
    # an inexact one is moved outward in both
    third = point(np.array(3.0), narrow=True)
    for x in (Interval(lo, lo.copy(), narrow=True), point(lo, narrow=True)):
        assert interval.div(x, third, FREE).lo[1] < 1 / 3 < interval.div(x, third, FREE).hi[1]


def test_a_quotient_is_as_exact_beside_an_uncertain_divisor_as_alone() -> None:
    x = point(np.array([1 + 2.0**-8, 1.0, 0.0]), narrow=True)
    lo = np.array([1.0, 3.0, -0.0])
    beside = interval.div(x, Interval(lo, np.array([1.0, 4.0, 0.0]), narrow=True), FREE)
    assert (beside.lo[0], beside.hi[0]) == (1 + 2.0**-8, 1 + 2.0**-8)
    assert beside.lo[1] < 0.25 < 1 / 3 < beside.hi[1]
    # a zero of either sign is no one value
    assert beside.nan is not None
