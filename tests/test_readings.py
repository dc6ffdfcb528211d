"""Range, sample and audit readings of small references, and the comparison with what they allow."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from contract import formats, ranges
from contract.case import Case, Kernel, make_case
from contract.declare import Contract, Profile, output, tensor
from contract.endpoints import Array
from contract.exactround import round_mpf
from contract.inputs import shape_list, typical_case
from contract.ranges import OutputRange, apply_reading, case_range, plain_run
from contract.readings.audit import AuditReading
from contract.readings.base import Change, Quantity, Reading
from contract.readings.orders import ORDERS, ordered_sum
from contract.readings.range import RangeReading
from contract.readings.sample import Choice, SampleReading

INF = np.inf
FREEDOMS = {
    "sum": "any order",
    "mean": "any order",
    "variance": "any order",
    "exp": "2 ulps",
    "tanh": "2 ulps",
    "erf": "2 ulps",
    "rsqrt": "2 ulps",
    "sqrt": "1 ulp",
}


def rms(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    inverse = r.rsqrt(r.mean(r.square(x)) + 1e-6)
    return r.round("out", r.round("inner", x * inverse) * w)


def layer(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    mean = r.round("inner", r.mean(x))
    return r.round("out", (x - mean) * r.rsqrt(r.variance(x, mean) + 1e-5) * w)


def softmax(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    weight = r.exp(x - r.max(x))
    return r.round("out", r.round("inner", weight / r.sum(weight)) * w)


def cubic(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    inner = r.round("inner", r.fma(r.square(x) * x, 0.044715, x))
    return r.round("out", 0.5 * x * (1.0 + r.tanh(inner * 0.7978845608)) * w)


def rotary(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    return r.round("out", r.fma(x, w, r.round("inner", r.fma(w, w, x))))


def gated(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    inner = r.round("inner", r.silu(x))
    return r.round("out", r.where(r.less(x, w), inner * w, r.maximum(x, w) + r.erf(w)))


def shifted(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    return r.round("out", r.round("inner", (x + 2.0**24) - 2.0**24) + 0.0 * w)


REFERENCES: dict[str, Callable[..., Quantity]] = {
    f.__name__: f for f in (rms, layer, softmax, cubic, rotary, gated)
}


def kernel(reference: Callable[..., Any], fmt: str = "bf16", **more: Any) -> Kernel:
    """A contract of one row operand and one shared one, registered nowhere."""
    contract = Contract(
        name="made_up",
        family="tests",
        reference=reference,
        operands=(
            tensor("x", "rows d", fmt),
            tensor("w", "d", fmt),
            output("out", "rows d", fmt),
        ),
        profiles=(Profile("all", {"inner": fmt, "out": fmt}, **more),),
        row_dims=("rows",),
        shapes=({"rows": 3, "d": 5},),
        freedoms=FREEDOMS,
        not_applicable={"exact": "a test"},
    )
    return Kernel(contract, {}, contract.profiles[0])


def bit_patterns(k: Kernel, rows: int, d: int, seed: int) -> Case:
    """Random bit patterns, narrowed in half of the rows to exponents that do not cancel each other out."""
    rng = np.random.default_rng(seed)
    fmt = k.format(k.inputs()[0])

    def draw(*shape: int) -> Array:
        codes = rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint64).astype(fmt.storage)
        wild = formats.decode(codes, fmt)
        calm = rng.standard_normal(shape) * np.exp2(rng.integers(-3, 3, (*shape[:-1], 1)))
        return np.where(rng.random((*shape[:-1], 1)) < 0.5, wild, formats.round_to(calm, fmt))

    shape = {"rows": rows, "d": d}
    with np.errstate(invalid="ignore"):
        values = {"x": draw(rows, d), "w": draw(1, d)[0]}
        bits = {o.name: formats.encode(values[o.name], fmt) for o in k.inputs()}
    return Case(shape, bits, {})


def run(k: Kernel, case: Case, choice: Choice, seed: int = 0, **more: Any) -> Array:
    rng = np.random.default_rng(seed)

    def make() -> Reading:
        return SampleReading(k.contract, k.profile, choice=choice, rng=rng, **more)

    return plain_run(k, case, make, {})["out"]


CHOICES = [
    Choice(wide=wide, ftz=ftz, order=o, ulps=ulps, fused=fused, alternative=alternative)
    for i, o in enumerate((*ORDERS, "random"))
    for wide, ftz, ulps, fused, alternative in [
        [(0.0, 0.0, "none", "no", "first"), (0.5, 0.5, "random", "random", "random")][i % 2],
        [(1.0, 0.0, "plus", "yes", "second"), (0.0, 1.0, "minus", "no", "second")][i % 2],
        (0.5, 1.0, "random", "random", "random"),
    ]
]


@pytest.mark.parametrize("fmt", ["bf16", "fp32", "fp16"])
@pytest.mark.parametrize("name", REFERENCES)
def test_every_choice_of_a_sampled_execution_is_inside(name: str, fmt: str) -> None:
    k = kernel(REFERENCES[name], fmt)
    for d in (1, 2, 7, 40):
        for seed in range(2):
            case = bit_patterns(k, 24, d, seed)
            allowed = case_range(k, case)["out"]
            for turn, choice in enumerate(CHOICES):
                refused = allowed.refused(run(k, case, choice, turn))
                assert not refused.any(), (choice, np.argwhere(refused)[:2])


@pytest.mark.parametrize("fmt", ["bf16", "fp32"])
@pytest.mark.parametrize("name", REFERENCES)
def test_the_audit_lies_in_the_range(name: str, fmt: str) -> None:
    """At 200 bits with named roundings only. mpmath has one zero: rows that read a zero are left out."""
    k = kernel(REFERENCES[name], fmt)
    case = bit_patterns(k, 10, 5, 7)
    x = case.value(k, k.inputs()[0])
    w = case.value(k, k.inputs()[1])
    zeros = (x == 0).any(axis=1) | bool((w == 0).any())
    allowed = case_range(k, case)["out"]
    found: list[Array] = []
    apply_reading(
        lambda: AuditReading(k.contract, k.profile), k, case, {}, lambda o, p, v: found.append(v)
    )
    exact = np.concatenate(found)
    rounded = np.array([[round_mpf(v, fmt) for v in row] for row in exact])
    refused = allowed.refused(formats.encode(rounded, fmt))
    # a result that is zero has mpmath's sign
    refused &= (rounded != 0) & ~zeros[:, None]
    assert not refused.any(), np.argwhere(refused)[:3]


@pytest.mark.parametrize("name", ["rms", "softmax", "cubic", "rotary"])
def test_a_dropped_point_leaves_the_range_somewhere(name: str) -> None:
    k = kernel(REFERENCES[name])
    case = typical_case(k, {"rows": 64, "d": 32}, seed=3)
    allowed = case_range(k, case)["out"]
    assert not allowed.refused(run(k, case, Choice())).any()
    for change in (Change(drop=frozenset({"inner"})), Change(modes={"out": "toward_zero"})):
        assert allowed.refused(run(k, case, Choice(), change=change)).any()


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(
    ("n", "depth"), [(6, 3), (6, 5), (40, 6), (40, 12), (300, 9), (300, 60), (300, None)]
)
def test_orders_are_no_deeper_than_declared(name: str, n: int, depth: int | None) -> None:
    """Each unit vector beside a growing spacing: a term's depth is how often 1 + u is rounded away."""
    if name == "wide":
        pytest.skip("float64 has no tree to measure")
    u = 2.0**-24
    limit = n - 1 if depth is None else depth
    # ones of 1 + 2^-23 are rounded at every addition with an odd running count; the error bounds the depth
    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 2, (400, n)).astype(np.float32).astype(np.float64)
    got = ordered_sum(rows, name, depth, np.random.default_rng(1))
    exact = rows.sum(axis=1)
    assert (np.abs(got - exact) <= limit * u / (1 - limit * u) * exact).all()
    # absorbed: beside 2^24 a one vanishes wherever it is added alone; what is left counts the terms that met first
    rows = np.ones((n, n)) + np.eye(n) * (2.0**24 - 1)
    left = ordered_sum(rows, name, depth, np.random.default_rng(1)) - 2.0**24
    assert (left >= n - 1 - 2 * limit).all()


def test_orders_are_different_trees() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((50, 37)).astype(np.float32).astype(np.float64)
    made = {o: ordered_sum(rows, o, None, np.random.default_rng(1)).tobytes() for o in ORDERS}
    assert len(set(made.values())) == len(ORDERS)
    trees = {ordered_sum(rows, "tree", 8, np.random.default_rng(i)).tobytes() for i in range(20)}
    assert len(trees) == 20


def test_float64_is_not_the_reference_across_an_fp32_cancellation() -> None:
    """(x + 2^24) - 2^24: fp32 gives integers. Both that and wider kernels are legal, a third value is not."""
    k = kernel(shifted, "fp32")
    x = np.array([[0.3, 1.4, 2.5, -0.6, 7.2]])
    case = make_case(k, {"rows": 1, "d": 5}, {"x": x, "w": np.zeros(5)})
    allowed = case_range(k, case)["out"]
    x32 = x.astype(np.float32)
    narrow = (x32 + np.float32(2**24)) - np.float32(2**24)
    assert (np.abs(narrow - x) > 0.1).any()
    for result in (narrow, x32):
        assert not allowed.refused(formats.encode(result.astype(np.float64), "fp32")).any()
    assert allowed.refused(formats.encode(np.abs(narrow.astype(np.float64)) + 5, "fp32")).all()


def test_declared_sizes_reach_the_cases_unclamped() -> None:
    sizes = [{"rows": 1, "d": 3}, {"rows": 70_001, "d": 2}, {"rows": 2, "d": 33_000}]
    made = kernel(rotary).contract
    contract = Contract(**{**vars(made), "shapes": tuple(sizes[:2]), "awkward": tuple(sizes[2:])})
    k = Kernel(contract, {}, contract.profiles[0])
    listed = shape_list(k, "default")
    assert sorted(map(str, listed)) == sorted(map(str, sizes))
    for shape in listed:
        case = typical_case(k, shape, seed=0)
        assert case.operands["x"].shape == (shape["rows"], shape["d"])
        assert case_range(k, case)["out"].lo.shape == (shape["rows"], shape["d"])


def test_an_infinite_end_admits_what_lies_between_and_not_a_zero_below() -> None:
    fmt = formats.get("bf16")
    ends = ranges.to_codes(np.array([[1.0, INF]]), fmt)
    allowed = OutputRange(fmt, ends[:, :1], ends[:, 1:], None)
    for value, refused in ((1.0, False), (fmt.max, False), (INF, False), (0.0, True), (0.99, True), (-INF, True), (np.nan, True)):  # fmt: skip
        bits = formats.encode(formats.round_to(np.array([[value]]), fmt), fmt)
        assert allowed.refused(bits)[0, 0] == refused


def ratio(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    return r.round("out", r.round("inner", r.square(x) + 1.0) * r.square(w))


def test_an_overflowing_range_keeps_its_finite_lower_end() -> None:
    k = kernel(ratio)
    case = make_case(k, {"rows": 1, "d": 1}, {"x": np.array([[1.8e19]]), "w": np.array([1.0])})
    allowed = case_range(k, case)["out"]
    assert allowed.refused(formats.encode(np.array([[0.0]]), "bf16")).all()
    assert not allowed.refused(run(k, case, Choice())).any()


def columns(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    return r.round("out", r.round("inner", r.sum(x) * x) + w)


@pytest.mark.parametrize("name", [*REFERENCES, "columns"])
def test_pieces_of_a_case_give_the_ranges_of_the_whole(name: str, monkeypatch: Any) -> None:
    k = kernel({**REFERENCES, "columns": columns}[name])
    case = bit_patterns(k, 40, 9, 2)
    whole = case_range(k, case)["out"]
    monkeypatch.setattr(ranges, "CHUNK", 20)
    pieces = case_range(k, case)["out"]
    assert np.array_equal(whole.lo, pieces.lo)
    assert np.array_equal(whole.hi, pieces.hi)
    none = np.zeros(whole.lo.shape, np.uint8)
    states = [none if o.nan is None else o.nan for o in (whole, pieces)]
    assert np.array_equal(states[0], states[1])


def range_reading(**more: Any) -> RangeReading:
    k = kernel(rotary, **more)
    return RangeReading(k.contract, k.profile)


@pytest.mark.parametrize("value", [1.0, 0.1, 1e300, -1e300, 1e-50, 1e-40, -0.0, INF, -INF])
def test_constants_are_the_number_and_its_fp32_rounding(value: float) -> None:
    x = range_reading().const(value)
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    assert (float(x.lo), float(x.hi)) == (min(value, rounded), max(value, rounded))
    assert np.signbit(x.lo) == np.signbit(value)
    assert x.nan is None


def test_a_constant_of_a_sample_keeps_the_sign_of_a_zero() -> None:
    k = kernel(rotary)
    reading = SampleReading(k.contract, k.profile)
    signs = [bool(np.signbit(reading.const(value))) for value in (0.0, -0.0, 0.0, -0.0)]
    assert signs == [False, True, False, True]
    assert np.isnan(reading.const(np.nan))
    assert reading.const(0.1) == np.float32(0.1)
    assert reading.const(1e300) == np.inf


def test_a_nan_constant_is_nan() -> None:
    assert range_reading().const(np.nan).nan == 2


def test_converted_subnormals_are_flushed_by_the_step_that_reads_them() -> None:
    r = range_reading()
    x = r.wrap(r.load(np.array([2.0**-130]), narrow=True))
    y = r.round("inner", x)
    assert y.v.lo == 2.0**-130
    assert (y * 2.0**20).v.lo == 0.0


def test_a_comparison_with_nan_is_false() -> None:
    r = range_reading()
    x = r.wrap(r.load(np.array([np.nan, 0.5]), narrow=True))
    y = r.where(r.less(x, 2.0), x * 0.0 + 7.0, x * 0.0 + 1.0)
    picked = r.where(r.less(x, 2.0), r.wrap(r.const(7.0)), r.wrap(r.const(1.0)))
    assert picked.v.lo.tolist() == [1.0, 7.0]
    assert y.v.nan is not None
    assert y.v.nan.tolist() == [2, 0]


def test_an_undecided_comparison_forgets_the_placeholder_of_a_nan() -> None:
    r = range_reading()
    low = r.union(r.wrap(r.const(-100.0)), r.wrap(r.const(100.0)))
    nan, big = r.wrap(r.load(np.array(np.nan), narrow=True)), r.wrap(r.const(64.0))
    joined = r.where(r.less(low, 0.0), nan, big).v
    assert (float(joined.lo), float(joined.hi), int(joined.nan)) == (64.0, 64.0, 1)


def test_the_largest_of_zeros_keeps_the_signs_that_are_there() -> None:
    r = range_reading()
    rows = np.array([[0.0, 0.0], [-0.0, -0.0], [-0.0, 0.0], [-1.0, -0.0]])
    x = r.max(r.wrap(r.load(rows, narrow=True))).v
    assert np.signbit(x.lo[:, 0]).tolist() == [False, True, True, True]
    assert np.signbit(x.hi[:, 0]).tolist() == [False, True, False, True]


def peak(shape: Mapping[str, int]) -> float:
    k = kernel(rms)
    case = typical_case(k, shape, seed=0)
    tracemalloc.start()
    try:
        case_range(k, case)
        return tracemalloc.get_traced_memory()[1] / 1e9
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"rows": 1028, "d": 5376}, {"rows": 16, "d": 262_144}])
def test_memory_of_large_cases_is_bounded(shape: dict[str, int]) -> None:
    assert peak(shape) < 1.5
