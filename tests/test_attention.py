"""Softmax-weighted sums: no legal execution leaves the range, and dropped roundings and other gauges do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from soundness import (
    CHOICES,
    FREE,
    bf16,
    contract_of,
    fp32,
    narrow,
    operands,
    outside,
    sample_reading,
)

from contract import interval
from contract.attention import ANY, FINAL, Gauge, Softmax, halves, running, softmax_av_range
from contract.attention_audit import softmax_av_audit
from contract.attention_samples import softmax_av_sample
from contract.endpoints import Array, Interval, point
from contract.errors import DeclarationError
from contract.orders import FP32, AnyOrder
from contract.product_samples import dot_sample
from contract.products import dot_range
from contract.readings.audit import AuditReading
from contract.readings.sample import NOMINAL, Choice

SPECS = (
    Softmax(),
    Softmax(p_format="bf16"),
    Softmax(p_format="bf16", sums="rounded"),
    Softmax(p_format="bf16", gauge=running(2)),
    Softmax(p_format="bf16", gauge=running(4), sums="rounded"),
    Softmax(p_format="bf16", gauge=running(2, 4), empty="nan"),
    Softmax(p_format="fp16", gauge=running(2), sums="rounded", empty="mean"),
    Softmax(p_format="e4m3fn", gauge=FINAL),
    Softmax(p_format="bf16", gauge=ANY),
    Softmax(p_format="fp16", gauge=ANY, sums="rounded"),
    Softmax(p_format="bf16", low_format="bf16", gauge=running(2, 2)),
    Softmax(p_format="bf16", low_format="bf16", sums="rounded"),
    Softmax(p_format="bf16", gauge=running(4), approximate=2.0**-13),
    Softmax(p_format="bf16", gauge=running(2), sums="rounded", approximate=2.0**-9),
)


def scores_of(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    x = rng.standard_normal(shape)
    if kind == "wide":
        return fp32(x * np.exp2(rng.integers(-10, 9, shape)))
    if kind == "far":
        return fp32(x * np.exp2(rng.integers(-20, 120, shape)))
    if kind == "equal":
        return fp32(np.round(x) * 2.0)
    if kind == "bits":
        words = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)
        with np.errstate(invalid="ignore"):
            return np.asarray(words.view(np.float32), np.float64)
    return fp32(x * 3)


@pytest.mark.parametrize("kind", ["ordinary", "wide", "far", "equal", "bits"])
@pytest.mark.parametrize(
    "spec",
    SPECS,
    ids=lambda s: (
        f"{s.p_format}-{s.low_format}-{s.gauge.kind}{s.gauge.block}-{s.sums}-{s.empty}-{s.approximate}"
    ),
)
def test_no_sampled_row_of_few_keys_leaves_the_range(spec: Softmax, kind: str) -> None:
    rng = np.random.default_rng(3)
    seen = 0
    for keys in (1, 2, 3, 4, 6, 8):
        s = scores_of(kind, rng, (14, 24, keys))
        v = operands("bits" if kind == "bits" else "ordinary", rng, (14, keys, 12))
        mask = rng.random((14, 24, keys)) < 0.8
        o, lse = softmax_av_range(narrow(s), narrow(v), mask, spec, FREE)
        for i, choice in enumerate(CHOICES):
            got, log = softmax_av_sample(sample_reading(choice, i), s, v, mask, spec)
            assert not outside(o, got).any(), (keys, choice)
            assert not outside(lse, log).any(), (keys, choice)
            seen += got.size
    assert seen >= 100_000


@pytest.mark.parametrize("spec", SPECS[:8:2], ids=str)
def test_uncertain_scores_and_values_are_covered(spec: Softmax) -> None:
    rng = np.random.default_rng(4)
    for keys in (2, 3, 8, 24):
        s, v = fp32(rng.standard_normal((8, 16, keys)) * 3), operands("ordinary", rng, (8, keys, 8))
        rad = np.exp2(rng.integers(-20, -4, s.shape).astype(float))
        wide = Interval(s - rad, s + rad)
        wide_v = Interval(v - np.abs(v) * 2.0**-9, v + np.abs(v) * 2.0**-9)
        o, lse = softmax_av_range(wide, wide_v, None, spec, FREE)
        for i, choice in enumerate(CHOICES):
            # all scores at an end move every maximum
            side = (rng.uniform(-1, 1, s.shape), np.ones(s.shape), -np.ones(s.shape))[i % 3]
            x = np.clip(fp32(s + side * rad), wide.lo, wide.hi)
            y = v * (1 + 2.0**-9 * rng.uniform(-1, 1, v.shape))
            got, log = softmax_av_sample(sample_reading(choice, i), x, y, None, spec)
            assert not outside(o, got).any()
            assert not outside(lse, log).any()


def flash(keys: int, d: int, spec: Softmax, queries: int = 32) -> dict[str, Any]:
    """Range, and bf16 outputs of executions: legal, without P's rounding, with scores in bf16, bf16 sums, other gauges."""
    rng = np.random.default_rng(5)
    q, k, v = (operands("ordinary", rng, x) for x in ((queries, d), (keys, d), (keys, d)))
    kt = np.ascontiguousarray(k.T)
    scale = np.asarray(2.0 ** -round(np.log2(d) / 2))
    s = dot_range(narrow(q), narrow(kt), AnyOrder(20), FP32, FREE)
    s = interval.mul(s, narrow(scale), FREE)
    o, _ = softmax_av_range(s, narrow(v), None, spec, FREE)
    r = sample_reading(CHOICES[0])
    real = r.mul(dot_sample(q, kt, AnyOrder(20), FP32, r.choice, r.rng), scale)

    def run(x: Array, other: Softmax) -> float:
        got = bf16(softmax_av_sample(r, x, v, None, other)[0])
        return float(((got < bf16(o.lo)) | (got > bf16(o.hi))).mean())

    return {
        "one": float((bf16(o.lo) == bf16(o.hi)).mean()),
        "legal": run(real, spec),
        "drop P": run(real, replace(spec, p_format=None)),
        "bf16 scores": run(bf16(real), spec),
        "block 64": run(real, replace(spec, gauge=running(64))),
        "block 512": run(real, replace(spec, gauge=running(512))),
        "range": o,
        "values": (r, real, v),
    }


@pytest.mark.parametrize(
    ("block", "one", "other"), [(64, 0.45, "block 512"), (512, 0.58, "block 64")]
)
def test_running_gauge_of_1028_keys_shows_the_rounding_and_the_block(
    block: int, one: float, other: str
) -> None:
    seen = flash(1028, 72, Softmax(70, None, running(block), "bf16"))
    assert seen["legal"] == 0
    assert one <= seen["one"] <= 0.8
    assert seen["drop P"] > 0.15
    assert seen[other] > 0.12
    assert seen["bf16 scores"] > 0.3


def test_an_unknown_gauge_shows_nothing() -> None:
    seen = flash(512, 64, Softmax(70, None, ANY, "bf16"), 8)
    assert seen["legal"] == seen["drop P"] == seen["block 64"] == 0


def test_few_live_keys_show_every_rounding_at_any_depth() -> None:
    for keys in (2, 4, 8):
        seen = flash(keys, 72, Softmax(gauge=running(64), p_format="bf16"), 64)
        assert seen["legal"] == 0
        assert seen["one"] > 0.85
        assert seen["drop P"] > 0.15
        assert seen["bf16 scores"] > 0.1


def test_sums_in_bf16_leave_the_range() -> None:
    seen = flash(256, 64, Softmax(70, None, running(64), "bf16"), 16)
    o, (_, s, v) = seen["range"], seen["values"]
    p = bf16(np.exp(s - s.max(axis=-1, keepdims=True)))
    total = np.zeros((*s.shape[:-1], v.shape[-1]))
    for j in range(s.shape[-1]):
        total = bf16(total + p[:, j : j + 1] * v[j])
    got = bf16(total / p.sum(axis=-1, keepdims=True))
    assert ((got < bf16(o.lo)) | (got > bf16(o.hi))).mean() > 0.5


@pytest.mark.parametrize("spec", SPECS[:7], ids=str)
def test_rows_of_equal_zero_scores_and_a_power_of_two_keys_are_exact(spec: Softmax) -> None:
    rng = np.random.default_rng(6)
    s = np.zeros((6, 40))
    mask = np.zeros(s.shape, bool)
    for row, count in enumerate((1, 2, 4, 8, 16, 32)):
        mask[row, rng.permutation(40)[:count]] = True
    v = rng.integers(1, 60, (40, 16)) * 2.0 + 1
    spec = replace(spec, merges=12)
    o, _ = softmax_av_range(narrow(s), narrow(v), mask, spec, FREE)
    exact = mask @ v / mask.sum(axis=-1, keepdims=True)
    assert np.array_equal(o.lo, exact)
    assert np.array_equal(o.hi, exact)
    for seed in range(20):
        choice = CHOICES[seed % len(CHOICES)]
        block = replace(spec, gauge=running(int(2 ** (seed % 5)))) if spec.gauge.block else spec
        got, _ = softmax_av_sample(sample_reading(choice, seed), s, v, mask, block)
        assert np.array_equal(got, exact), choice


def test_masked_keys_weigh_exactly_nothing_whatever_they_hold() -> None:
    rng = np.random.default_rng(8)
    s, v = fp32(rng.standard_normal((4, 6))), operands("ordinary", rng, (6, 5))
    mask = np.array([True, True, True, True, False, False])
    poison_s, poison_v = s.copy(), v.copy()
    poison_s[:, 4:], poison_v[4:] = 1e30, 1e38
    for spec in SPECS[:5]:
        a, _ = softmax_av_range(narrow(s), narrow(v), mask, spec, FREE)
        b, _ = softmax_av_range(narrow(poison_s), narrow(poison_v), mask, spec, FREE)
        c, _ = softmax_av_range(
            narrow(s[:, :4]), narrow(v[:4]), None, replace(spec, merges=spec.merges_of(6)), FREE
        )
        assert np.array_equal(a.lo, b.lo)
        assert np.array_equal(a.hi, b.hi)
        assert np.allclose(a.lo, c.lo, rtol=1e-5)


@pytest.mark.parametrize(("empty", "value"), [("zeros", 0.0), ("nan", np.nan), ("mean", 2.0)])
def test_a_row_without_a_live_key_is_one_of_three_conventions(empty: str, value: float) -> None:
    v = np.array([[1.0], [3.0]])
    o, lse = softmax_av_range(
        narrow(np.ones((1, 2))), narrow(v), np.zeros((1, 2), bool), Softmax(empty=empty), FREE
    )
    if np.isnan(value):
        assert o.nan is not None
        assert o.nan[0, 0] == 2
    else:
        assert o.nan is None or not o.nan.any()
        assert o.lo[0, 0] == o.hi[0, 0] == value
    assert empty == "mean" or lse.lo[0, 0] == -np.inf


def test_a_nan_score_makes_its_row_nan_and_no_other() -> None:
    s, v = np.zeros((3, 4)), np.ones((4, 2))
    s[1, 2] = np.nan
    o, lse = softmax_av_range(narrow(s), narrow(v), None, Softmax(), FREE)
    assert o.nan is not None
    assert lse.nan is not None
    assert o.nan[:, 0].tolist() == [0, 2, 0]
    assert o.lo[0, 0] == o.hi[0, 0] == 1.0


def test_a_score_that_is_minus_infinity_or_nan_may_make_its_row_nan() -> None:
    """As the sum of an overflowed product and -inf is; the other key's finite score alone would give 1."""
    s = Interval(
        np.array([[0.0, -np.inf]]), np.array([[0.0, -np.inf]]), np.array([[0, 1]], np.uint8)
    )
    o, lse = softmax_av_range(s, narrow(np.ones((2, 1))), None, Softmax(), FREE)
    for x in (o, lse):
        assert not outside(x, np.full((1, 1), np.nan)).any()
    assert not outside(o, np.ones((1, 1))).any()
    masked, _ = softmax_av_range(
        s, narrow(np.ones((2, 1))), np.array([True, False]), Softmax(), FREE
    )
    assert outside(masked, np.full((1, 1), np.nan)).all()


def test_a_row_of_infinitely_low_scores_may_be_taken_for_an_empty_one() -> None:
    s, v = np.full((1, 3), -np.inf), np.array([[1.0, np.nan], [1.0, 1.0], [1.0, 1.0]])
    o, _ = softmax_av_range(narrow(s), point(v, narrow=True), None, Softmax(), FREE)
    assert o.nan is not None
    assert o.nan.tolist() == [[1, 1]]
    assert not outside(o, np.zeros((1, 2))).any()
    assert not outside(o, np.full((1, 2), np.nan)).any()


def test_the_audit_lies_in_the_range() -> None:
    rng = np.random.default_rng(9)
    contract = contract_of(lambda r, x: x)
    audit = AuditReading(contract, contract.profiles[0])
    for spec in SPECS:
        s, v = fp32(rng.standard_normal((6, 9)) * 3), operands("ordinary", rng, (9, 5))
        mask = rng.random(s.shape) < 0.7
        o, lse = softmax_av_range(narrow(s), narrow(v), mask, spec, FREE)
        exact, log = softmax_av_audit(
            audit.load(s, narrow=True), audit.load(v, narrow=True), mask, spec
        )
        assert not outside(o, exact.astype(np.float64)).any()
        assert not outside(lse, log.astype(np.float64)).any()


def test_a_wrong_declaration_is_refused_where_it_is_made() -> None:
    for kind, block, split in (("running", 0, 0), ("final", 4, 0), ("running", 4, 6)):
        with pytest.raises(DeclarationError):
            Gauge(kind, block, split)
    with pytest.raises(DeclarationError, match="sums"):
        Softmax(sums="both")
    with pytest.raises(DeclarationError, match="empty"):
        Softmax(empty="one")
    with pytest.raises(DeclarationError, match="approximate"):
        Softmax(approximate=0.25)


def test_two_halves_keep_sixteen_bits_and_never_fall() -> None:
    spec = Softmax(p_format="bf16", low_format="bf16")
    e = np.exp2(np.linspace(-12, 0, 200_001))
    high, low = halves(e, spec)
    # 2^-9 is half a unit of high; low, below that, is off by at most 2^-9 of itself
    assert (np.abs(high + low - e) <= e * 2.0**-17).all()
    assert (np.abs(high + low - e) > e * 2.0**-19).any()
    assert (np.diff(high + low) >= 0).all()
    assert np.array_equal(high, bf16(e))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ordinary", "wide", "equal", "bits"])
def test_many_more_sampled_rows_stay_inside(kind: str) -> None:
    rng = np.random.default_rng(10)
    for turn in range(200):
        spec = SPECS[turn % len(SPECS)]
        keys = 2 + turn % 23
        s, v = scores_of(kind, rng, (8, 32, keys)), operands("ordinary", rng, (8, keys, 16))
        o, _ = softmax_av_range(narrow(s), narrow(v), None, spec, FREE)
        choice: Choice = CHOICES[turn % len(CHOICES)]
        got, _ = softmax_av_sample(sample_reading(choice, turn), s, v, None, spec)
        assert not outside(o, got).any()


def test_one_live_key_gives_its_value() -> None:
    v = operands("ordinary", np.random.default_rng(11), (3, 8))
    mask = np.eye(3, dtype=bool)
    for spec in SPECS[:5]:
        o, _ = softmax_av_range(narrow(np.full((3, 3), 7.25)), narrow(v), mask, spec, FREE)
        got, _ = softmax_av_sample(sample_reading(NOMINAL), np.full((3, 3), 7.25), v, mask, spec)
        assert np.array_equal(bf16(o.lo), v)
        assert np.array_equal(bf16(o.hi), v)
        assert np.array_equal(got, v)


def test_the_budget_of_exp_is_needed_and_covers_its_worst_errors() -> None:
    rng = np.random.default_rng(12)
    spec = Softmax(merges=0, ulps=256)
    s, v = fp32(rng.standard_normal((64, 8)) / 64), operands("ordinary", rng, (8, 16))
    o, _ = softmax_av_range(narrow(s), narrow(v), None, spec, FREE)
    tight, _ = softmax_av_range(narrow(s), narrow(v), None, replace(spec, ulps=16), FREE)
    left = 0
    for seed in range(20):
        got, _ = softmax_av_sample(sample_reading(CHOICES[0], seed), s, v, None, spec)
        assert not outside(o, got).any()
        left += int(outside(tight, got).sum())
    assert left > 1000


def test_the_error_of_an_approximate_exponential_is_needed_at_zero_as_well() -> None:
    rng = np.random.default_rng(13)
    for s in (np.zeros((64, 8)), fp32(rng.standard_normal((64, 8)))):
        v = operands("ordinary", rng, (8, 16))
        spec = Softmax(approximate=2.0**-9)
        o, lse = softmax_av_range(narrow(s), narrow(v), None, spec, FREE)
        tight, tight_lse = softmax_av_range(
            narrow(s), narrow(v), None, replace(spec, approximate=2.0**-13), FREE
        )
        left = lost = 0
        for seed in range(12):
            got, log = softmax_av_sample(sample_reading(CHOICES[seed % 3], seed), s, v, None, spec)
            assert not outside(o, got).any()
            assert not outside(lse, log).any()
            left, lost = left + outside(tight, got).sum(), lost + outside(tight_lse, log).sum()
        assert left > 1000
        assert lost > 100
