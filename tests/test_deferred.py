"""A step put off until its rounding, against the same step taken at once: the same allowed values, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contract import deferred, endpoints, interval
from contract.formats import decode
from contract.interval import Array, Interval
from contract.kernels.softcap import softcap
from contract.readings.range import RangeReading

PROFILE = next(p for p in softcap.profiles if not p.keeps_subnormals)
ROWS, COLUMNS = 64, 512
STEPS: dict[str, Callable[[RangeReading, Interval, Interval], Interval]] = {
    "add": lambda r, a, b: r.add(a, b),
    "mul": lambda r, a, b: r.mul(a, b),
    "div": lambda r, a, b: r.div(a, b),
    "tanh": lambda r, a, b: r._function("tanh", a, 2),
    "exp": lambda r, a, b: r._function("exp", a, 1.0),
    "rsqrt": lambda r, a, b: r._function("rsqrt", a, 2),
}


def reading() -> RangeReading:
    return RangeReading(softcap, PROFILE)


def usual(rng: np.random.Generator) -> Array:
    return decode(
        rng.normal(size=(ROWS, COLUMNS)).astype(np.float32).view(np.uint32) >> 16 << 16, "fp32"
    )


def beside_ties(rng: np.random.Generator) -> Array:
    """fp32 values beside the ties of bf16, and on them."""
    word = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32).view(np.uint32)
    return decode((word & 0xFFFF0000) + 0x7FFE + rng.integers(0, 5, word.shape, np.uint32), "fp32")


def with_zeros(rng: np.random.Generator) -> Array:
    x = usual(rng)
    x[rng.random(x.shape) < 0.02] = 0.0
    return np.where(rng.random(x.shape) < 0.01, -x, x)


def with_small(rng: np.random.Generator) -> Array:
    """A few whose products are subnormal, or whose sums float64 rounds onto a tie."""
    x = np.where(rng.random((ROWS, COLUMNS)) < 0.05, beside_ties(rng), usual(rng))
    return np.where(rng.random(x.shape) < 0.05, x * 2.0**-75, x)


def any_word(rng: np.random.Generator) -> Array:
    return decode(rng.integers(0, 1 << 16, (ROWS, COLUMNS)).astype(np.uint16), "bf16")


VALUES = {f.__name__: f for f in (usual, beside_ties, with_zeros, with_small, any_word)}


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "_LEAST_SIZE", 1 << 60)


def chain(r: RangeReading, step: str, a: Interval, b: Interval, fmt: str) -> list[Interval]:
    """The step, a product and a sum of what comes out, each rounded: ranges and zeros go on into them."""

    def rounded(x: Interval) -> Interval:
        return r._round("out", x, fmt, "nearest_even", None, None)

    first = rounded(STEPS[step](r, a, b))
    product = rounded(r.mul(first, b))
    return [first, product, rounded(r.add(product, r.const(1.0)))]


@pytest.mark.parametrize("fmt", ["bf16", "tf32"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", VALUES)
def test_same_as_at_once(kind: str, step: str, fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x, y = VALUES[kind](rng), VALUES[kind](rng)[:1]
    found: list[list[Interval]] = []
    for late in (True, False):
        if not late:
            at_once(monkeypatch)
        r = reading()
        found.append(chain(r, step, r.load(x, narrow=True), r.load(y, narrow=True), fmt))
    for pair in zip(*found, strict=True):
        _equal(*pair)


@pytest.mark.parametrize("scale", [2.0**-124, 2.0**127])
def test_at_the_ends_of_what_is_calm(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # a product that is calm, but not surely so once it is rounded; one in fifty is a tie
    rng = np.random.default_rng(9)
    x = np.where(rng.random((ROWS, COLUMNS)) < 0.02, 1 + 2.0**-8, 1.0) * scale
    x = x if scale < 1 else scale - (x - scale) / 2
    found: list[Interval] = []
    for late in (True, False):
        if not late:
            at_once(monkeypatch)
        r = reading()
        factor = Interval(np.full((ROWS, 1), 1.0), np.full((ROWS, 1), 1 + 2.0**-20))
        if scale > 1:
            factor = Interval(np.full((ROWS, 1), 1 - 2.0**-20), np.full((ROWS, 1), 1.0))
        factor.span = endpoints.span_of(factor.lo, factor.hi)
        found.append(chain(r, "mul", r.load(x, narrow=True), factor, "bf16")[0])
    assert not found[1].same
    _equal(*found)


@pytest.mark.parametrize("step", ["mul", "div"])
def test_a_rows_factor_is_a_range(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    x, middle = usual(rng), np.exp(rng.normal(size=(ROWS, 1)))
    width = 2.0 ** -rng.integers(13, 40, (ROWS, 1)).astype(float)
    found: list[list[Interval]] = []
    for late in (True, False):
        if not late:
            at_once(monkeypatch)
        r = reading()
        factor = Interval(middle * (1 - width), middle * (1 + width))
        factor.span = endpoints.span_of(factor.lo, factor.hi)
        found.append(chain(r, step, r.load(x, narrow=True), factor, "bf16"))
    for pair in zip(*found, strict=True):
        _equal(*pair)


def _equal(a: Interval, b: Interval) -> None:
    for one, other in ((a.lo, b.lo), (a.hi, b.hi)):
        assert (one.view(np.int64) == other.view(np.int64)).all()
    for x in (a, b):
        assert x.nan is None or x.nan.any()
    assert (a.nan is None) == (b.nan is None)
    assert a.nan is None or b.nan is None or (a.nan == b.nan).all()
    assert (a.narrow, a.bits, a.raw) == (b.narrow, b.bits, b.raw)


def test_most_elements_need_no_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def count(a: Interval, b: Interval, free: Any) -> Interval:
        taken.append(max(a.lo.size, b.lo.size))
        return product(a, b, free)

    product = interval.mul
    monkeypatch.setattr(interval, "mul", count)
    x, r = usual(np.random.default_rng(7)), reading()
    third = r.load(np.full((1, COLUMNS), np.float32(1 / 3)), narrow=True)
    chain(r, "mul", r.load(x, narrow=True), third, "bf16")
    assert sum(taken) < x.size / 8


def test_a_deferred_interval_is_read_as_any_other() -> None:
    rng = np.random.default_rng(8)
    r = reading()
    a, b = (r.load(usual(rng), narrow=True) for _ in range(2))
    late, now = r.add(a, b), interval.add(a, b, r.free)
    assert isinstance(late, deferred.Deferred)
    assert late.shape == now.shape
    assert late.same == now.same
    _equal(late.map(np.transpose), now.map(np.transpose))
    with pytest.raises(AttributeError):
        late.nothing  # noqa: B018
