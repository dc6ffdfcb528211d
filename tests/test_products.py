"""Matrix products: no legal execution leaves the range, and the range is as narrow as the declared order allows."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from soundness import (
    CHOICES,
    FREE,
    KINDS,
    PLAIN_CHOICES,
    STRICT,
    bf16,
    contract_of,
    fp32,
    narrow,
    operands,
    outside,
    sample_reading,
    trees,
)

from contract.endpoints import Array, Freedom, Interval, point
from contract.errors import DeclarationError
from contract.orders import FP32, AnyOrder, Chunks, Mma, Order, Tree, accumulator
from contract.product_samples import Draw, dot_sample
from contract.products import dot_range, tree_dot, tree_sum
from contract.readings.audit import AuditReading
from contract.readings.range import RangeReading
from contract.readings.sample import NOMINAL, Choice

ORDERS: tuple[Any, ...] = (AnyOrder(), AnyOrder(3), Chunks(2), Chunks(3, 2), Mma(4), Mma(3, 2))
BATCH = 48


def pair(kind: str, rng: np.random.Generator, n: int, m: int = BATCH) -> tuple[Array, Array]:
    return operands(kind, rng, (m, n)), operands(kind, rng, (n, m))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_no_sampled_product_of_few_terms_leaves_the_range(order: Any, kind: str) -> None:
    rng = np.random.default_rng(7)
    seen = 0
    for n in range(1, 9):
        a, b = pair(kind, rng, n)
        allowed = dot_range(narrow(a), narrow(b), order, FP32, FREE)
        for choice in CHOICES:
            got = dot_sample(a, b, order, FP32, choice, rng)
            assert not outside(allowed, got).any(), (n, choice)
            seen += got.size
    assert seen >= 100_000


@pytest.mark.parametrize("kind", ["ordinary", "window", "huge", "subnormal", "bits"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_without_the_freedoms_of_a_step_the_order_alone_stays_inside(order: Any, kind: str) -> None:
    rng = np.random.default_rng(8)
    for n in range(1, 9):
        a, b = pair(kind, rng, n)
        allowed = dot_range(narrow(a), narrow(b), order, FP32, STRICT)
        for choice in PLAIN_CHOICES:
            assert not outside(allowed, dot_sample(a, b, order, FP32, choice, rng)).any(), choice


@pytest.mark.parametrize("name", ["fp16", "bf16", "w14", "w10"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_an_accumulator_of_another_format_has_its_own_bound(order: Any, name: str) -> None:
    rng, acc = np.random.default_rng(9), accumulator(name)
    for kind in ("ordinary", "huge", "subnormal"):
        scale = 2.0**-8 if name == "fp16" and kind != "ordinary" else 1.0
        for n in (2, 3, 5, 8):
            a, b = (x * scale for x in pair(kind, rng, n))
            if name == "fp16":
                a, b = (np.clip(x, -300, 300) for x in (a, b))
            allowed = dot_range(narrow(a), narrow(b), order, acc, FREE)
            for choice in CHOICES:
                assert not outside(allowed, dot_sample(a, b, order, acc, choice, rng)).any()


def test_a_narrower_accumulator_leaves_the_range_of_a_wider_one() -> None:
    rng = np.random.default_rng(10)
    a, b = pair("ordinary", rng, 64)
    allowed = dot_range(narrow(a), narrow(b), AnyOrder(), FP32, FREE)
    for name in ("fp16", "bf16", "w14"):
        got = dot_sample(a, b, AnyOrder(), accumulator(name), NOMINAL, rng)
        assert outside(allowed, got).mean() > 0.9


@pytest.mark.parametrize("kind", ["full", "ordinary", "window"])
def test_all_trees_of_six_terms_lie_within_their_depth(kind: str) -> None:
    rng = np.random.default_rng(11)
    a, b = operands(kind, rng, (1, 6)), operands(kind, rng, (6, 400))
    if kind == "full":
        # 24 bits, just above a power of two: where a rounding loses most
        a, b = np.ones((1, 6)), fp32(1 + 2.0**-9 * rng.random((6, 400)))
    terms = (a.T * b).astype(np.float32)
    ranges = {d: dot_range(narrow(a), narrow(b), AnyOrder(d), FP32, STRICT) for d in range(3, 6)}

    def run(tree: Any) -> tuple[Array, int]:
        if isinstance(tree, int):
            return terms[tree], 0
        (x, i), (y, j) = run(tree[0]), run(tree[1])
        return x + y, max(i, j) + 1

    count, reached = 0, 0.0
    for tree in trees(tuple(range(6))):
        total, depth = run(tree)
        r = ranges[depth]
        assert not outside(r, total[None].astype(np.float64)).any()
        radius = np.maximum(r.hi - r.lo, 1e-300) / 2
        reached = max(reached, float((np.abs(total - (r.lo + r.hi) / 2) / radius).max()))
        count += 1
    assert count == 945
    # the bound is not slack: some tree comes close
    assert kind != "full" or reached > 0.4


def test_uncertain_operands_widen_the_range_by_their_radii() -> None:
    rng = np.random.default_rng(12)
    for kind in ("ordinary", "window", "fp32"):
        for n in (1, 2, 5, 8):
            a, b = pair(kind, rng, n)
            wide_a = Interval(a - np.abs(a) * 0.01, a + np.abs(a) * 0.02)
            wide_b = Interval(b - 2.0**-9, b)
            for order in ORDERS:
                allowed = dot_range(wide_a, wide_b, order, FP32, FREE)
                for choice in CHOICES:
                    x = fp32(a + np.abs(a) * rng.uniform(-0.009, 0.019, a.shape))
                    y = b - 2.0**-9 * rng.integers(0, 2, b.shape)
                    got = dot_sample(x, y, order, FP32, choice, rng)
                    assert not outside(allowed, got).any()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 13, 64, 100])
def test_a_nominal_sum_is_the_balanced_tree(n: int) -> None:
    """Left halves of a power of two: computed a level at a time, it is the tree that splits there."""

    def split(x: Array) -> Array:
        if x.shape[-1] == 1:
            return x[..., 0]
        half = 1 << ((x.shape[-1] - 1).bit_length() - 1)
        return fp32(split(x[..., :half]) + split(x[..., half:]))

    a, b = pair("ordinary", np.random.default_rng(n), n)
    terms = fp32(a[:, None, :] * b.T[None])
    got = dot_sample(a, b, AnyOrder(), FP32, NOMINAL, np.random.default_rng(0))
    np.testing.assert_array_equal(got, split(terms))


def test_a_sequential_sum_takes_one_term_after_the_other() -> None:
    """Also where its terms are no fp32 numbers, as products that are fused into it."""
    for kind in ("ordinary", "window", "subnormal"):
        a, b = pair(kind, np.random.default_rng(3), 40)
        for fused in ("no", "yes"):
            terms = a[:, None, :] * b.T[None]
            terms = terms if fused == "yes" else fp32(terms)
            total = terms[..., 0]
            for k in range(1, 40):
                total = fp32(total + terms[..., k])
            choice = Choice(order="sequential", fused=fused)
            got = dot_sample(a, b, AnyOrder(), FP32, choice, np.random.default_rng(0))
            np.testing.assert_array_equal(got, total)


def test_a_start_is_one_more_term() -> None:
    rng = np.random.default_rng(13)
    for kind in KINDS:
        for order in ORDERS:
            a, b = pair(kind, rng, 4)
            start = operands(kind, rng, (BATCH, BATCH))
            allowed = dot_range(narrow(a), narrow(b), order, FP32, FREE, narrow(start))
            for choice in CHOICES:
                got = dot_sample(a, b, order, FP32, choice, rng, start)
                assert not outside(allowed, got).any(), (kind, order)


@pytest.mark.parametrize(
    "tree", [Tree("sequential"), Tree("sequential", "yes"), Tree("pairwise")], ids=str
)
def test_a_tree_is_executed_and_as_exact_as_its_operands(tree: Tree) -> None:
    rng = np.random.default_rng(14)
    contract = contract_of(lambda r, x: x)
    strict = RangeReading(contract, contract.profiles[0], free=STRICT)
    for kind in ("ordinary", "window", "subnormal"):
        for n in (1, 2, 3, 6, 7):
            a, b = pair(kind, rng, n, 16)
            allowed = tree_dot(strict, narrow(a), narrow(b), tree)
            got = tree_dot(sample_reading(Choice()), a, b, tree)
            assert np.array_equal(allowed.lo, got)
            assert np.array_equal(allowed.hi, got)


@pytest.mark.parametrize(
    ("tree", "value"),
    [
        # 1 + 3 * 2^-9: bf16 has nothing between 1 and 1 + 2^-7, and ties go to 1
        (Tree("sequential", accumulator="bf16"), 1.0),
        (Tree("pairwise", accumulator="bf16"), 1.0),
        (Tree("sequential", accumulator="fp16"), 1.0 + 3 * 2.0**-9),
        (Tree("sequential"), 1.0 + 3 * 2.0**-9),
    ],
    ids=str,
)
def test_a_tree_rounds_its_partial_sums_to_the_accumulator(tree: Tree, value: float) -> None:
    a, b = np.array([[1.0, 2.0**-9, 2.0**-9, 2.0**-9]]), np.ones((4, 1))
    got = tree_dot(sample_reading(Choice()), a, b, tree)
    summed = tree_sum(sample_reading(Choice()), a, -1, tree)
    assert got.tolist() == summed.tolist() == [[value]]


def test_a_tree_rounds_its_products_and_starts_from_either_zero() -> None:
    a, b = np.array([[1.0 + 2.0**-7, -0.0]]), np.array([[1.0 + 2.0**-7], [1.0]])
    rounded = Tree("sequential", accumulator="fp32", products="bf16")
    assert tree_dot(sample_reading(Choice()), a, b, rounded).item() == 1.0 + 2.0**-6
    contract = contract_of(lambda r, x: x)
    strict = RangeReading(contract, contract.profiles[0], free=STRICT)
    zero = tree_dot(strict, narrow(a[:, 1:]), narrow(b[1:]), Tree("sequential"))
    assert np.signbit(zero.lo).all()
    assert not np.signbit(zero.hi).any()


def integer_rows(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """Odd integers up to 255; the second half of a row mirrors the first, 32 columns put the result below 1023."""
    a = 2.0 * rng.integers(-64, 64, (m, k)) + 1
    b = 2.0 * rng.integers(-64, 64, (k, n)) + 1
    half = (k - 32) // 2
    b[half : 2 * half] = -b[:half]
    a[:, half : 2 * half] = a[:, :half]
    b[2 * half :] = rng.integers(0, 2, (k - 2 * half, n)) * 2 - 1.0
    return a, b


@pytest.mark.parametrize("scale", [1.0, 2.0**-20])
def test_exact_rows_have_one_value_in_every_order(scale: float) -> None:
    rng = np.random.default_rng(15)
    a, b = integer_rows(rng, 8, 16, 512)
    a = a * np.exp2(rng.integers(-8, 8, (8, 1))) * scale
    exact = a @ b
    size = (np.abs(a) @ np.abs(b) / np.abs(a).min(axis=1, keepdims=True)).max()
    assert size > 2.0**21
    for order in ORDERS:
        r = dot_range(narrow(a), narrow(b), order, FP32, FREE)
        single = (r.lo == exact) & (r.hi == exact)
        assert single[exact != 0].all(), order
    for seed in range(20):
        choice = CHOICES[seed % len(CHOICES)]
        for order in (AnyOrder(), Chunks(16), Mma(16)):
            got = dot_sample(a, b, order, FP32, choice, np.random.default_rng(seed))
            assert np.array_equal(got, exact)
    # and they tell a wrong accumulator
    for name in ("bf16", "fp16", "w14"):
        wrong = dot_sample(a / scale, b, AnyOrder(), accumulator(name), NOMINAL, rng)
        assert (wrong != exact / scale).mean() > 0.5


def test_one_term_off_the_grid_ends_exactness() -> None:
    rng = np.random.default_rng(16)
    a, b = integer_rows(rng, 4, 8, 256)
    a[1, 200] = 2.0**-12
    r = dot_range(narrow(a), narrow(b), AnyOrder(), FP32, FREE)
    one = (r.lo == r.hi).all(axis=1)
    assert one.tolist() == [True, False, True, True]


def test_a_matrix_engine_is_exact_to_one_bit_less() -> None:
    # the terms' magnitudes add up to 2^24 - 2^8: beyond what is aligned to the largest exponent with 24 bits
    a, b = np.full((1, 255), 256.0), np.full((255, 1), 256.0)
    a[0, ::2] = -256.0
    for order, one in ((AnyOrder(), True), (Mma(16), True)):
        r = dot_range(narrow(a), narrow(b), order, FP32, FREE)
        assert bool((r.lo == r.hi).all()) is one
    a[0, 0] = -255.0
    one_value = [
        bool((x.lo == x.hi).all())
        for x in (dot_range(narrow(a), narrow(b), o, FP32, FREE) for o in (AnyOrder(), Mma(16)))
    ]
    # multiples of 2^8, sum 2^24 - 2^8 = 65535 * 2^8: both are exact; of 1, only 24 bits would do
    b[0, 0] = 255.0
    at_one = [
        bool((x.lo == x.hi).all())
        for x in (dot_range(narrow(a), narrow(b), o, FP32, FREE) for o in (AnyOrder(), Mma(16)))
    ]
    assert one_value == [True, True]
    assert at_one == [True, False]


def test_overflow_in_some_order_admits_infinities_and_nan() -> None:
    a = np.array([[2.0**127, 2.0**127, -(2.0**127), -(2.0**127)]]) * 1.5
    r = dot_range(narrow(a), narrow(np.ones((4, 1))), AnyOrder(), FP32, FREE)
    assert r.nan is not None
    assert (r.lo[0, 0], r.hi[0, 0], r.nan[0, 0]) == (-np.inf, np.inf, 1)
    # only the positive terms can: the finite end stays
    r = dot_range(narrow(np.abs(a)), narrow(np.ones((4, 1))), AnyOrder(), FP32, FREE)
    assert r.nan is None
    assert r.hi[0, 0] == np.inf
    assert 0 < r.lo[0, 0] < np.inf


def test_an_infinite_operand_gives_its_infinity_and_nan_where_it_clashes() -> None:
    a = np.array([[np.inf, 1.0], [np.inf, -np.inf], [np.inf, 0.0], [np.nan, 1.0]])
    b = np.array([[1.0, 0.0], [1.0, 1.0]])
    r = dot_range(narrow(a), narrow(b), AnyOrder(), FP32, FREE)
    assert r.nan is not None
    assert r.nan.tolist() == [[0, 2], [2, 2], [0, 2], [2, 2]]
    assert r.lo[0, 0] == r.hi[0, 0] == np.inf


def test_a_number_that_may_be_nan_is_summed_where_it_is_a_number() -> None:
    a = Interval(np.array([[2.0, 3.0]]), np.array([[2.0, 3.0]]), np.array([[1, 0]], np.uint8))
    for order in (AnyOrder(), Chunks(1), Mma(2)):
        r = dot_range(a, narrow(np.array([[5.0], [7.0]])), order, FP32, FREE)
        assert r.nan is not None
        assert (r.lo[0, 0], r.hi[0, 0], r.nan[0, 0]) == (31.0, 31.0, 1)


def share(order: Any, k: int, m: int = 32, n: int = 128) -> float:
    rng = np.random.default_rng(17)
    a, b = pair("ordinary", rng, k, 1)
    a, b = operands("ordinary", rng, (m, k)), operands("ordinary", rng, (k, n))
    r = dot_range(narrow(a), narrow(b), order, FP32, FREE)
    return float((bf16(r.lo) == bf16(r.hi)).mean())


@pytest.mark.parametrize(
    ("order", "low", "high"),
    [
        (AnyOrder(), 0.0, 0.01),
        (AnyOrder(24), 0.88, 0.94),
        (AnyOrder(64), 0.78, 0.88),
        (Chunks(16), 0.90, 0.97),
        (Mma(16), 0.60, 0.75),
        (Mma(16, 2), 0.83, 0.92),
    ],
    ids=str,
)
def test_the_declared_order_decides_how_much_is_one_value(
    order: Any, low: float, high: float
) -> None:
    assert low <= share(order, 4096) <= high


def test_truncating_the_store_leaves_the_range_at_depth_24() -> None:
    rng = np.random.default_rng(18)
    a, b = operands("ordinary", rng, (16, 2048)), operands("ordinary", rng, (2048, 64))
    r = dot_range(narrow(a), narrow(b), AnyOrder(24), FP32, FREE)
    got = dot_sample(a, b, AnyOrder(24), FP32, NOMINAL, rng)
    from contract.formats import round_to

    cut = np.asarray(round_to(got, "bf16", "toward_zero"))
    assert ((cut < bf16(r.lo)) | (cut > bf16(r.hi))).mean() > 0.35


def test_the_audit_lies_in_the_range_and_the_reading_takes_a_tighter_order() -> None:
    rng = np.random.default_rng(19)
    a, b = operands("window", rng, (6, 9)), operands("window", rng, (9, 5))
    contract = contract_of(lambda r, x: x, freedoms={"dot": "a test"})
    profile = contract.profiles[0]
    loose = RangeReading(contract, profile)
    tight = RangeReading(contract, profile, {"dot": Mma(4, 8)})  # type: ignore[dict-item]
    audit = AuditReading(contract, profile)
    widths = []
    for r in (loose, tight):
        x, y = (r.wrap(r.load(v, narrow=True)) for v in (a, b))
        found = r.dot(x, y)
        widths.append(found.v.hi - found.v.lo)
        exact = audit.dot(*(audit.wrap(audit.load(v, narrow=True)) for v in (a, b)))
        assert not outside(found.v, exact.v.astype(np.float64)).any()
    assert (widths[1] < widths[0]).mean() > 0.5
    with pytest.raises(DeclarationError, match="inside it"):
        loose.dot(x, y, order=Chunks(2), depth=3)
    with pytest.raises(DeclarationError, match="accumulator"):
        loose.dot(x, y, accumulator="fp8")


def test_a_batch_of_matrices_is_what_each_of_them_is() -> None:
    rng = np.random.default_rng(20)
    a, b = operands("ordinary", rng, (3, 1, 4, 33)), operands("ordinary", rng, (2, 33, 5))
    for order in ORDERS:
        r = dot_range(narrow(a), narrow(b), order, FP32, FREE)
        assert r.shape == (3, 2, 4, 5)
        one = dot_range(narrow(a[1, 0]), narrow(b[1]), order, FP32, FREE)
        assert np.allclose(r.lo[1, 1], one.lo, rtol=1e-12, atol=0)


@pytest.mark.slow
def test_a_model_sized_product_stays_below_its_memory() -> None:
    code = (
        "import numpy as np, resource\n"
        "from contract.endpoints import Freedom, Interval\n"
        "from contract.orders import FP32, AnyOrder\n"
        "from contract.products import dot_range\n"
        "b = np.empty((16384, 5376)); rng = np.random.default_rng(0)\n"
        "for k in range(0, 16384, 512): b[k:k+512] = rng.standard_normal((512, 5376)).astype(np.float16)\n"
        "a = rng.standard_normal((128, 16384)).astype(np.float16).astype(float)\n"
        "x, y = Interval(a, a, narrow=True), Interval(b, b, narrow=True)\n"
        "r = dot_range(x, y, AnyOrder(24), FP32, Freedom())\n"
        "assert r.shape == (128, 5376)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) * 1024 < 1.5e9


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_sampled_products_stay_inside(kind: str) -> None:
    rng = np.random.default_rng(21)
    orders: tuple[Order, ...] = ORDERS
    for turn in range(300):
        n = 2 + turn % 7
        a, b = pair(kind, rng, n, 64)
        for order in orders:
            assert not isinstance(order, Tree)
            allowed = dot_range(narrow(a), narrow(b), order, FP32, Freedom())
            got = dot_sample(a, b, order, FP32, CHOICES[turn % len(CHOICES)], rng)
            assert not outside(allowed, got).any()


def test_zero_times_anything_is_an_exact_zero_of_either_sign() -> None:
    a, b = np.zeros((1, 8)), np.full((8, 1), 2.0**-140)
    r = dot_range(point(a, narrow=True), point(b, narrow=True), AnyOrder(), FP32, FREE)
    assert r.lo[0, 0] == r.hi[0, 0] == 0
    assert np.signbit(r.lo[0, 0])
    assert not np.signbit(r.hi[0, 0])


@pytest.mark.parametrize("n", [256, 257, 999, 20_000])
def test_a_long_running_sum_adds_every_term_once(n: int) -> None:
    x = np.random.default_rng(n).integers(-50, 50, (3, n)).astype(np.float64)
    draw = Draw(FP32, Choice(wide=0.5, ftz=0.5), np.random.default_rng(0))
    assert np.array_equal(draw._running(x), x.sum(axis=-1))
