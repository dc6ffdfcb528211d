"""A step put off until its rounding, against the same step taken at once: the same allowed values, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from contract import assert_allowed, case, deferred, endpoints, inputs, interval
from contract.endpoints import ONLY, Freedom
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
    # the ends of what is NaN only are placeholders
    known = np.broadcast_to(True if a.nan is None else a.nan != ONLY, a.shape)
    for one, other in ((a.lo, b.lo), (a.hi, b.hi)):
        assert (one.view(np.int64) == other.view(np.int64))[known].all()
    for x in (a, b):
        assert x.nan is None or x.nan.any()
        _holds_its_bounds(x)
    assert (a.nan is None) == (b.nan is None)
    assert a.nan is None or b.nan is None or (a.nan == b.nan).all()
    assert (a.narrow, a.bits, a.raw) == (b.narrow, b.bits, b.raw)


def _holds_its_bounds(x: Interval) -> None:
    """The magnitudes that are said of an interval are those of its ends."""
    ends = np.abs(np.stack((x.lo, x.hi))).reshape(2, -1)
    if x.span is not None:
        assert x.span[0] <= ends.min()
        assert ends.max() <= x.span[1]
    if isinstance(x, deferred.Sparse):
        rest = np.delete(ends, x.spots, axis=1)
        assert x.rest[0] <= rest.min()
        assert rest.max() <= x.rest[1]


# one element's factors: what its product is rounded to is calm, and the product is not; a product that is not calm,
# with what brings it back
EXTREMES = {
    "rounded up to calm": ("mul", (1 - 2.0**-12) * 2.0**-60, 2.0**-64, 2.0**-6, 2.0**3),
    "rounded down to calm": ("mul", (1 + 2.0**-12) * 2.0**100, 2.0**27, 8.0, 2.0**-5),
    "calm again": ("mul", 2.0**-61, 2.0**-64, 2.0**10, 2.0**-20),
    "zero": ("add", 1.0, -1.0, 3.0, 3.0),
}


@pytest.mark.parametrize("rows", [ROWS, 1])
@pytest.mark.parametrize("name", EXTREMES)
def test_one_element_is_extreme(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    operands = [rng.uniform(1, 2, (n, 8 * COLUMNS)) for n in (rows, rows, ROWS, ROWS)]
    first, *values = EXTREMES[name]
    for x, value in zip(operands, values, strict=True):
        x[min(5, len(x) - 1), 7] = value
    found: list[list[Interval]] = []
    for late in (True, False):
        if not late:
            at_once(monkeypatch)
        r = reading()
        steps = [r.load(x.astype(np.float32), narrow=True) for x in operands]
        for at, step in enumerate((first, "mul", "mul")):
            made = STEPS[step](r, steps[at], steps[at + 1])
            steps[at + 1] = r._round("out", made, "bf16", "nearest_even", None, None)
        steps.append(r._round("out", r.div(steps[3], steps[1]), "bf16", "nearest_even", None, None))
        found.append(steps[1:])
    for pair in zip(*found, strict=True):
        _equal(*pair)
    if rows == ROWS:
        assert any(isinstance(x, deferred.Sparse) for x in found[0])


def test_a_kernel_that_flushes_a_small_product_is_allowed() -> None:
    x, weight = torch.ones(ROWS, 128), torch.ones(128)
    x[:, 0], x[:, 1], weight[0] = 2.0**-124, 1.421875, 2.0**-8
    x, weight = x.bfloat16(), weight.bfloat16()
    wide = x.float()
    normed = (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).bfloat16()
    out = normed * weight
    for small in (out[0, 0].item(), 0.0):
        out[:, 0] = small
        assert_allowed("rms_norm", out, x=x, weight=weight, eps=1e-6, profile="two_step", gain="w")


@pytest.mark.parametrize("seed", range(30))
def test_random_chains(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    shapes = ((ROWS, COLUMNS), (1, COLUMNS), (ROWS, 1), (ROWS, COLUMNS))
    leaves = [_with_extremes(rng, shape) for shape in shapes]
    count = len(leaves)
    program = [
        (str(rng.choice(list(STEPS))), int(rng.integers(count + i)), int(rng.integers(count + i)))
        for i in range(6)
    ]
    formats = rng.choice(["bf16", "tf32", "fp32"], len(program), p=[0.5, 0.3, 0.2])
    free = Freedom(wide=bool(rng.integers(2)), ftz=bool(rng.integers(2)))
    found: list[list[Interval]] = []
    for late in (True, False):
        if not late:
            at_once(monkeypatch)
        r = RangeReading(softcap, PROFILE, free=free)
        pool = [r.load(x, narrow=True) for x in leaves]
        for (step, a, b), fmt in zip(program, formats, strict=True):
            made = STEPS[step](r, pool[a], pool[b])
            pool.append(r._round("out", made, str(fmt), "nearest_even", None, None))
        found.append(pool)
    for one, other in zip(*found, strict=True):
        _equal(one, other)


def _with_extremes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Ordinary values, or powers of two, with a few from one end of fp32 to the other."""
    x = rng.normal(size=shape)
    if rng.integers(2):
        x = np.exp2(rng.integers(-100, 100, shape)) * (1 + rng.integers(0, 256, shape) / 256)
    wild = np.exp2(rng.integers(-123, 127, shape)) * rng.choice((1, 1 - 2.0**-9, 1 + 2.0**-12), shape)  # fmt: skip
    return np.where(rng.random(shape) < rng.choice((0, 0.002, 0.02)), wild, x).astype(np.float32)


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


@pytest.mark.parametrize(
    "own",
    [
        (3, 4, 5, 6),
        (4, 1, 6),
        (3, 1, 5, 1),
        (1, 4, 5, 1),
        (6,),
        (1,),
        (3, 4, 1, 1),
        (5, 6),
        (3, 1, 1, 6),
    ],
)
def test_places_of_broadcast_elements(own: tuple[int, ...]) -> None:
    shape = (3, 4, 5, 6)
    values = np.arange(np.prod(own)).reshape(own)
    index = np.flatnonzero(np.random.default_rng(0).random(shape) < 0.5)
    found = values.reshape(-1)[deferred._place(own, index, shape)]
    assert np.array_equal(found, np.broadcast_to(values, shape).reshape(-1)[index])


def test_a_case_keeps_the_ranges_of_its_operands() -> None:
    kernel = case.find("softcap")
    own = inputs.typical_case(kernel, {"rows": 4, "n": 8}, 0)
    (x,) = kernel.inputs()
    first = RangeReading(kernel.contract, kernel.profile).operand(kernel, own, x)
    assert RangeReading(kernel.contract, kernel.profile).operand(kernel, own, x) is first
    assert case.take_rows(kernel, own, slice(0, 1)).ranges == {}
