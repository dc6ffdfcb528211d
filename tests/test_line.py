"""The line reading accepts nothing that the range refuses, and most of what it allows."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import numpy as np
import pytest

from contract import Contract, Profile, formats, output, tensor
from contract.case import Kernel, find
from contract.endpoints import Array
from contract.ranges import case_range, option_sets
from contract.readings.line import Line, LineReading, NoLine
from contract.sweeps.runs import LENGTHS, Runs
from contract.sweeps.space import FP32, Space

#: Kernel, its module, enumerated parameters, profile: every function and every step that lines have.
KERNELS = [
    ("softcap", "softcap", {}, "float32"),
    ("gelu", "gelu", {"form": "tanh"}, "float32"),
    ("gelu", "gelu", {"form": "erf"}, "float32"),
    ("swiglu", "swiglu", {}, "float32"),
    ("residual_add", "residual_add", {}, "float32"),
    ("scale", "scale", {}, "float32"),
    ("cast", "cast", {"to": "bf16"}, "inf"),
    ("logit_scale", "logit_scale", {}, "float32"),
]
#: Where something begins: zeros, subnormals, 2^-126, powers of two, where tanh and exp saturate, the largest values,
#: infinity.
PLACES = (
    0x0, 0x3FF000, 0x7FF800, 0x800000, 0xFFF800, 0x1000000, 0x2F000000, 0x33000000, 0x39000000, 0x3E800000, 0x3F7FF800,
    0x3F800000, 0x40490800, 0x40FFF800, 0x41200000, 0x41A00000, 0x42AEA000, 0x42B17000, 0x43000000, 0x7E000000,
    0x7EFFF800, 0x7F000000, 0x7F7FF000,
)  # fmt: skip
COUNT = 4 * LENGTHS[0]


def _kernel(name: str, module: str, parameters: Mapping[str, str], profile: str) -> Kernel:
    importlib.import_module(f"contract.kernels.{module}")
    return find(name, profile, parameters)


def _starts(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 0x7F800000 // COUNT, 12) * COUNT
    return [
        sign + int(place) // COUNT * COUNT for sign in (0, 1 << 31) for place in (*PLACES, *drawn)
    ]


@pytest.mark.parametrize(
    ("name", "module", "parameters", "profile"),
    KERNELS,
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_no_output_that_the_range_refuses_is_accepted(
    name: str, module: str, parameters: Mapping[str, str], profile: str
) -> None:
    kernel = _kernel(name, module, parameters, profile)
    space = Space(kernel, FP32)
    compared = accepted = 0
    for setting in space.settings:
        runs = Runs(kernel, setting, {})
        for first in _starts(len(name)):
            codes = space.codes(setting, first, first + COUNT - 1)
            case = space.case(setting, codes)
            ranges = [case_range(kernel, case, o)["out"] for o in option_sets(kernel)]
            for bits in _outputs(ranges[0].lo, ranges[0].hi, ranges[0].fmt):
                refused = np.any(
                    [r.refused(bits.reshape(r.lo.shape)).reshape(-1) for r in ranges], 0
                )
                yes = runs.allowed(first, first + COUNT - 1, {"out": bits})
                assert not (yes & refused).any(), hex(first + int(np.argmax(yes & refused)))
                compared += int(refused.sum())
                accepted += int(yes.sum())
    assert not runs.reason
    assert compared > 100_000
    assert accepted > 100_000


def _outputs(lo: Array, hi: Array, fmt: formats.Format) -> list[Array]:
    """Outputs at both ends of a range, beside them, in its middle, zeros of both signs, and a NaN."""
    lo, hi = (x.reshape(-1).astype(np.int64) for x in (lo, hi))
    ends = [lo - 2, lo - 1, lo, (lo + hi) // 2, hi, hi + 1, hi + 2]
    # beyond the codes of NaN there are none
    limit = (1 << (fmt.bits - 1)) - 1
    found = [formats.from_ordered(np.clip(x, -limit, limit), fmt).astype(fmt.storage) for x in ends]
    zeros = formats.encode(np.array([0.0, -0.0, np.nan]), fmt)
    return [*found, *(np.full(lo.shape, bits, fmt.storage) for bits in zeros)]


def test_correctly_rounded_outputs_of_a_softcap_are_accepted_nearly_everywhere() -> None:
    kernel = _kernel(*KERNELS[0])
    space = Space(kernel, FP32)
    runs = Runs(kernel, space.settings[0], {})
    shares = []
    for first in range(0x00400000, 0x7F000000, 0x01000000):
        x = np.arange(first, first + COUNT, dtype=np.uint32).view(np.float32).astype(np.float64)
        out = (30.0 * np.tanh(x / 30.0)).astype(np.float32).view(np.uint32)
        shares.append(runs.allowed(first, first + COUNT - 1, {"out": out}).mean())
    # all but the runs that begin below the smallest line; 0.98 is one of 64
    assert np.mean(shares) > 0.98
    assert min(shares[1:]) > 0.98


@pytest.mark.parametrize("function", ["exp", "tanh", "erf", "log", "log1p", "sqrt", "rsqrt"])
def test_a_curve_stays_within_its_line(function: str) -> None:
    from mpmath import mp

    from contract import functions

    kernel = _kernel(*KERNELS[0])
    reading = LineReading(kernel.contract, kernel.profile, {}, {})
    middles = np.array([1e-30, 1e-3, 0.3, 0.999, 1.7, 6.0, 50.0])
    if functions.get(function).domain == -np.inf:
        middles = np.concatenate([-middles, middles])
    halves = middles * 2.0**-12
    line = reading._function(function, Line(middles, halves, np.zeros(middles.shape)), 0)
    seen = 0
    for a, b, w, x, h in zip(line.a, line.b, line.w, middles, halves, strict=True):
        for t in np.linspace(-1, 1, 41):
            with mp.workprec(200):
                true = functions.get(function).precise(mp, mp.mpf(x) + mp.mpf(h) * mp.mpf(t))
                off = abs(true - (mp.mpf(a) + mp.mpf(b) * mp.mpf(t)))
                # without ulps w is negative, by more than the line misses
                assert w == -np.inf or off <= -w
        seen += w > -np.inf
    assert seen >= 5


def test_a_step_without_a_line_is_left_to_the_range() -> None:
    kernel = _kernel(*KERNELS[0])
    reading = LineReading(kernel.contract, kernel.profile, {}, {})
    one = Line(np.ones(2), np.zeros(2), np.zeros(2))
    with pytest.raises(NoLine, match="sum"):
        reading._sum(one, -1, None)
    with pytest.raises(NoLine, match="toward_zero"):
        reading._round("out", one, "bf16", "toward_zero", None, None)
    assert (
        reading._function("exp", Line(np.zeros(1), np.zeros(1), np.zeros(1)), 2).w == -np.inf
    ).all()


def test_an_undecided_comparison_has_no_line() -> None:
    kernel = _kernel(*KERNELS[0])
    reading = LineReading(kernel.contract, kernel.profile, {}, {})
    run = Line(np.array([-2.0, 0.5, 2.0]), np.ones(3), np.zeros(3))
    condition = reading._less(run, reading.const(0.0))
    chosen = reading._where(condition, reading.const(1.0), run)
    assert chosen.a[[0, 2]].tolist() == [1.0, 2.0]
    assert chosen.w.tolist() == [0.0, -np.inf, 0.0]


#: t at which lines are looked at.
T = np.linspace(-1, 1, 9)


def _lines(seed: int) -> list[tuple[Line, Array, Array]]:
    """Lines away from zero with ranges that meet their promise and no more: (line, lo, hi), the ends at each t.

    A range that holds its line is as narrow as w says; one that misses it is one value, above or below.
    """
    rng = np.random.default_rng(seed)
    found = []
    for inside in (1.0, 0.0, -1.0):
        for side in (-1.0, 1.0):
            for sign in (-1.0, 1.0):
                a = sign * rng.uniform(0.5, 4.0, 6)
                b, w = rng.uniform(-0.05, 0.05, 6), inside * rng.uniform(0.0, 0.05, 6)
                value = a[:, None] + b[:, None] * T
                off = np.maximum(-w, 0.0)[:, None] * side
                half = np.maximum(w, 0.0)[:, None]
                found.append((Line(a, b, w), value + off - half, value + off + half))
    return found


def _kept(out: Line, lo: Array, hi: Array) -> bool:
    """Whether a range keeps what a line says, but for float64's errors."""
    value = out.a[:, None] + out.b[:, None] * T
    w = out.w[:, None]
    slack = 2.0**-45 * (np.abs(value) + 1)
    return bool(((w == -np.inf) | ((lo <= value - w + slack) & (hi >= value + w - slack))).all())


@pytest.mark.parametrize("step", ["add", "mul", "div", "max", "min", "union", "less"])
def test_a_step_on_two_lines_promises_what_the_hull_keeps(step: str) -> None:
    kernel = _kernel(*KERNELS[0])
    reading = LineReading(kernel.contract, kernel.profile, {}, {})
    finite = 0
    for a, a_lo, a_hi in _lines(1):
        for b, b_lo, b_hi in _lines(2):
            if step in ("add", "mul", "div"):
                out = getattr(reading, step)(a, b)
                f = {"add": np.add, "mul": np.multiply, "div": np.divide}[step]
                corners = [f(x, y) for x in (a_lo, a_hi) for y in (b_lo, b_hi)]
                lo, hi = np.min(corners, 0), np.max(corners, 0)
            elif step in ("max", "min"):
                out = reading._extreme(a, b, largest=step == "max")
                f = np.maximum if step == "max" else np.minimum
                lo, hi = f(a_lo, b_lo), f(a_hi, b_hi)
            elif step == "union":
                out = reading._union(a, b)
                lo, hi = np.minimum(a_lo, b_lo), np.maximum(a_hi, b_hi)
            else:
                # a where a < b, else 2 b: the range takes a branch where it is sure, and joins them where it is not
                out = reading._where(reading._less(a, b), a, reading.add(b, b))
                sure, never = a_hi < b_lo, a_lo >= b_hi
                lo = np.where(sure, a_lo, np.where(never, 2 * b_lo, np.minimum(a_lo, 2 * b_lo)))
                hi = np.where(sure, a_hi, np.where(never, 2 * b_hi, np.maximum(a_hi, 2 * b_hi)))
            assert _kept(out, lo, hi)
            finite += int(np.isfinite(out.w).sum())
    assert finite > 200


@pytest.mark.parametrize("step", ["square", "abs", "neg", "exp", "tanh", "erf", "rsqrt", "round"])
def test_a_step_on_one_line_promises_what_the_hull_keeps(step: str) -> None:
    from contract import functions

    kernel = _kernel(*KERNELS[0])
    reading = LineReading(kernel.contract, kernel.profile, {}, {})
    bf16 = formats.get("bf16")
    finite = 0
    for line, lo, hi in _lines(3):
        if step == "round":
            # as an operand of a further step: rounded to nearest, once
            out = reading.add(
                reading._round("p", line, "bf16", "nearest_even", None, None), reading.const(0.0)
            )
            ends = [formats.round_to(x, bf16) for x in (lo, hi)]
        elif step in ("square", "abs", "neg"):
            out = {"square": reading._square, "abs": reading._absolute, "neg": reading.neg}[step](
                line
            )
            ends = [
                {"square": np.square, "abs": np.abs, "neg": np.negative}[step](x) for x in (lo, hi)
            ]
        else:
            if step == "rsqrt" and (line.a < 0).any():
                continue
            out = reading._function(step, line, 0)
            ends = [functions.get(step).value(x) for x in (lo, hi)]
        assert _kept(out, np.minimum(*ends), np.maximum(*ends))
        finite += int(np.isfinite(out.w).sum())
    assert finite > 20


def test_what_one_alternative_of_an_option_allows_is_not_accepted_for_all() -> None:
    contract = Contract(
        name="either",
        family="activations",
        reference=lambda r, x, by: r.round("out", x * (1.5 if by == "one" else 1.5000005)),
        operands=(tensor("x", "rows n", "fp32"), output("out", "rows n", "fp32")),
        options={"by": ("one", "other")},
        profiles=(Profile("float32", {"out": "fp32"}, options={"by": ("one", "other")}),),
        row_dims=("rows",),
        shapes=({"rows": 1, "n": 4},),
        not_applicable={"exact": "a test"},
    )
    kernel = Kernel(contract, {}, contract.profiles[0])
    runs = Runs(kernel, Space(kernel, FP32).settings[0], {})
    x = np.arange(0x3F800000, 0x3F800000 + COUNT, dtype=np.uint32).view(np.float32)
    for factor in (1.5, 1.5000005):
        out = (x.astype(np.float64) * factor).astype(np.float32).view(np.uint32)
        assert not runs.allowed(0x3F800000, 0x3F800000 + COUNT - 1, {"out": out}).any()
    assert not runs.reason


def test_the_magnitude_of_a_range_that_reaches_past_zero_is_no_wider_below_than_the_value() -> None:
    kernel = _kernel(*KERNELS[0])
    reading = LineReading(kernel.contract, kernel.profile, {}, {})
    # [-0.04, 0.06] becomes [0, 0.06]
    out = reading._absolute(Line(np.array([0.01]), np.zeros(1), np.array([0.05])))
    assert out.w.tolist() == [0.01]
