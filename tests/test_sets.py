"""Picks and one-of-few results as sets, and the functions whose extrema lie inside a range."""

from __future__ import annotations

from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
from soundness import CHOICES, bf16, contract_of, fp32, narrow, outside, sample_reading

from contract import formats, functions
from contract.autocontrols import automatic
from contract.case import Case, Kernel, make_case
from contract.declare import Contract, Profile, output, tensor
from contract.endpoints import Array, Interval
from contract.errors import DeclarationError
from contract.ranges import case_range, plain_run
from contract.readings.audit import AuditReading
from contract.readings.range import RangeReading
from contract.readings.sample import SampleReading
from contract.sets import Choices, OutputSet, one_of, pick_max


def first_largest(values: Array) -> Array:
    return np.asarray(np.argmax(values, axis=-1))


def test_picks_of_ranges_are_exactly_what_some_assignment_gives() -> None:
    rng = np.random.default_rng(1)
    for _ in range(400):
        n = int(rng.integers(1, 5))
        lo = rng.integers(-2, 3, n).astype(float)
        hi = lo + rng.integers(0, 3, n)
        every = np.stack(
            np.meshgrid(*(np.arange(a, b + 1) for a, b in zip(lo, hi, strict=True))), -1
        )
        want = sorted(set(first_largest(every.reshape(-1, n)).tolist()))
        got = np.flatnonzero(pick_max(Interval(lo, hi), -1, "first").allowed).tolist()
        assert got == want, (lo, hi)


def test_nan_is_the_largest_or_never_picked() -> None:
    rows = np.array(
        [
            [1.0, np.nan, 3.0, np.nan],
            [np.nan] * 4,
            [-np.inf] * 4,
            [np.inf, np.nan, np.inf, 0.0],
            [np.nan, -np.inf, np.nan, -np.inf],
        ]
    )
    picks = {"first": [1, 0, 0, 1, 0], "ignore": [2, 0, 0, 0, 1]}
    x = narrow(rows)
    for nan, want in picks.items():
        allowed = pick_max(x, -1, nan).allowed
        assert allowed.argmax(axis=-1).tolist() == want
        assert (allowed.sum(axis=-1) == 1).all()
        for reading in (sample_reading(CHOICES[0], 0), audit()):
            got = reading.pick_max(reading.wrap(reading.load(rows, narrow=True)), nan=nan)
            assert np.asarray(got.v, np.float64).tolist() == want
    may = Interval(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([1, 0], np.uint8))
    assert pick_max(may, -1, "first").allowed.tolist() == [True, True]
    assert np.array_equal(first_largest(np.array([1.0, np.nan, 3.0])), 1)


def audit() -> AuditReading:
    contract = contract_of(lambda r, x: x)
    return AuditReading(contract, contract.profiles[0])


def route(r: Any, x: Any, w: Any) -> Any:
    return r.pick_max(r.round("logits", r.dot(x, w)))


def kernel_of(reference: Any = route) -> Kernel:
    contract = Contract(
        name="route",
        family="test",
        reference=reference,
        operands=(tensor("x", "rows d"), tensor("w", "d experts"), output("pick", "rows", "int32")),
        profiles=(Profile("plain", {"logits": None}),),
        row_dims=("rows",),
        shapes=({"rows": 512, "d": 32, "experts": 24},),
        freedoms={"dot": "a proof"},
        not_applicable={"exact": "a test"},
    )
    return Kernel(contract, {}, contract.profiles[0])


def case_of(kernel: Kernel, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    shape = dict(kernel.contract.shapes[0])
    # every column twice: equal logits, apart from the order of their sums
    w = np.tile(rng.standard_normal((32, 12)), 2)
    values = {"x": rng.standard_normal((512, 32)), "w": w}
    return make_case(kernel, shape, values)


def test_sampled_picks_are_in_the_set_and_another_index_is_not() -> None:
    kernel = kernel_of()
    seen = several = 0
    for seed in range(34):
        case = case_of(kernel, seed)
        allowed = case_range(kernel, case)["pick"]
        assert isinstance(allowed, OutputSet)
        several += int((~allowed.one_value()).sum())
        for i, choice in enumerate(CHOICES):
            rng = np.random.default_rng(i)
            out = plain_run(
                kernel,
                case,
                partial(SampleReading, kernel.contract, kernel.profile, choice=choice, rng=rng),
                {},
            )["pick"]
            assert not allowed.refused(out).any(), choice
            seen += out.size
        assert allowed.refused((out + 1) % 24).mean() > 0.9
        assert allowed.refused(out + 24).all()
    assert seen >= 100_000
    assert several > 10_000


def test_a_set_has_the_interface_of_a_range_and_null_controls_run_on_it() -> None:
    kernel = kernel_of()
    case = case_of(kernel, 0)
    allowed = case_range(kernel, case)["pick"]
    assert allowed.size == 512
    assert allowed.widest == 0.0
    lo, hi, state = allowed.ends((3,))
    assert lo <= hi
    assert state == 0
    null = next(a for a in automatic(kernel) if a.name == "null-one-ulp-beyond")
    out = null.run(kernel, case, 0)["pick"]
    assert allowed.refused(out).sum() == 1


def test_one_of_few_results_admits_nothing_between_them() -> None:
    bf16_format = formats.get("bf16")

    def either(r: Any, x: Any) -> Any:
        return r.one_of(r.round("a", x), r.round("b", x * 2.0))

    contract = contract_of(
        either,
        Profile("plain", {"a": "bf16", "b": "bf16"}),
        operands=(tensor("x", "rows d"), output("out", "rows d")),
    )
    kernel = Kernel(contract, {}, contract.profiles[0])
    case = make_case(kernel, {"rows": 2, "d": 4}, {"x": np.arange(8.0).reshape(2, 4) + 1})
    allowed = case_range(kernel, case)["out"]
    for factor, red in ((1.0, False), (2.0, False), (1.5, True), (0.5, True)):
        bits = formats.encode(bf16((np.arange(8.0).reshape(2, 4) + 1) * factor), bf16_format)
        assert bool(allowed.refused(bits).all()) is red
        assert bool(allowed.refused(bits).any()) is red


def test_saturated_or_nan_are_two_results_and_no_range() -> None:
    a, b = narrow(np.array([448.0, 448.0, 1.0])), narrow(np.array([np.nan, 448.0, np.nan]))
    both = one_of([a, b])
    assert isinstance(both, Choices)
    assert both.nan is not None
    assert both.nan.tolist() == [1, 0, 1]
    assert both.lo.tolist() == both.hi.tolist() == [448.0, 448.0, 1.0]
    contract = contract_of(lambda r, x: x)
    r = RangeReading(contract, contract.profiles[0])
    with pytest.raises(DeclarationError, match="nan"):
        r.pick_max(r.wrap(a), nan="last")


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_extrema_inside_a_range_are_found(name: str) -> None:
    rng = np.random.default_rng(2)
    f = functions.get(name)
    lo = rng.uniform(-30, 30, 2000)
    hi = lo + rng.exponential(2.0, 2000)
    low, high, nan = f.ends(Interval(lo, hi))
    inside = f.value(np.linspace(lo, hi, 4001))
    assert nan is None
    assert (inside.min(axis=0) >= low).all()
    assert (inside.max(axis=0) <= high).all()
    # and no wider than 4,001 points show: half a step of 10 / 4000 beside an extremum is 10^-6
    assert (inside.min(axis=0) - low).max() < 2e-5
    assert (high - inside.max(axis=0)).max() < 2e-5


def test_waves_at_their_special_points() -> None:
    contract = contract_of(lambda r, x: x, freedoms={"cos": "a test", "sin": "a test"})
    r = RangeReading(contract, contract.profiles[0])
    zero = r.wrap(r.load(np.array([0.0]), narrow=True))
    assert r.cos(zero).v.lo[0] == r.cos(zero).v.hi[0] == 1.0
    assert r.sin(zero).v.lo[0] == r.sin(zero).v.hi[0] == 0.0
    endless = r.cos(r.wrap(r.load(np.array([np.inf, 1.0]), narrow=True))).v
    assert endless.nan is not None
    assert endless.nan.tolist() == [2, 0]
    wide = r.sin(r.wrap(Interval(np.array([2.0**30]), np.array([2.0**30 + 64])))).v
    assert wide.lo[0] <= -1
    assert wide.hi[0] >= 1


@pytest.mark.parametrize("name", ["cos", "sin", "log", "log1p"])
def test_functions_agree_with_200_bits_and_their_samples_lie_inside(name: str) -> None:
    rng = np.random.default_rng(3)
    x = fp32(rng.standard_normal(3000) * np.exp2(rng.integers(-30, 20, 3000)))
    x = np.concatenate([x, [0.0, 1.0, np.inf, 2.0**100]])
    if name.startswith("log"):
        x = np.abs(x)
    contract = contract_of(lambda r, x: x, freedoms={name: "a test"})
    profile = contract.profiles[0]
    r, audit = RangeReading(contract, profile), AuditReading(contract, profile)
    allowed = r.function(name, r.wrap(r.load(x, narrow=True)), ulps=2).v
    # intervals of one ulp around the points
    ends = fp32(x * (1 - 2.0**-23)), fp32(x * (1 + 2.0**-23))
    around = Interval(np.minimum(*ends), np.maximum(*ends))
    wide = r.function(name, r.wrap(around), ulps=2).v
    exact = audit.function(name, audit.wrap(audit.load(x, narrow=True)), ulps=2).v
    assert not outside(allowed, exact.astype(np.float64)).any()
    seen = 0
    for turn in range(36):
        reading = sample_reading(CHOICES[turn % len(CHOICES)], turn)
        got = reading._function(name, x, 2)
        assert not outside(allowed, got).any()
        assert not outside(wide, got).any()
        seen += got.size
    assert seen >= 100_000
    assert mpmath.mp.prec >= 200


def test_softplus_is_its_argument_above_the_threshold() -> None:
    x = fp32(np.linspace(-30, 40, 1001))
    contract = contract_of(lambda r, x: x, freedoms={"exp": "a test", "log1p": "a test"})
    r = RangeReading(contract, contract.profiles[0])
    allowed = r.softplus(r.wrap(r.load(x, narrow=True))).v
    with np.errstate(over="ignore"):
        true = np.where(x > 20, x, np.log1p(np.exp(x)))
    assert (np.abs(allowed.lo - true) <= 2.0**-21 * true).all()
    assert ((allowed.lo <= true) & (true <= allowed.hi)).all()
    assert (allowed.lo[x > 20] == x[x > 20]).all()
