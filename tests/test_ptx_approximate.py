"""Approximate instructions of PTX: to nearest by default, and pushed to the ends of what the ISA documents."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import ptx_model
import pytest
from ptx_check import arrays, check, run, samples
from ptx_model import LAYOUTS, Value, decode, finite, flush, logb, negative, real

from contract.engines.ptx import approximate, table

OPCODES = samples(approximate.ROWS)
SINGLE = [opcode for opcode in OPCODES if not opcode.endswith("x2")]
P = Fraction(2)


@pytest.mark.parametrize("opcode", OPCODES)
def test_nominal_is_correctly_rounded(opcode: str) -> None:
    check(opcode, 200)


def root(x: float) -> Fraction:
    """2^x rounded up, as a fraction."""
    return Fraction(float(np.nextafter(2.0**x, 1.0)))


def allowed(opcode: str, exact: Fraction, x: Fraction) -> Fraction:
    """The documented largest error: the ISA's sentences, once more."""
    name, kind = opcode.split(".")[0], opcode.rsplit(".", 1)[-1]
    f = LAYOUTS[kind]
    ulp = P ** (max(logb(abs(exact)), f.emin) - f.p + 1) if exact else P ** (f.emin - f.p + 1)
    near = abs(x) <= Fraction(2 * np.pi)
    relative = {
        "sqrt": root(-23),
        "rsqrt": root(-22.9),
        "lg2": root(-22),
        "tanh": root(-11),
        "ex2": root(-9.9) if kind == "f16" else root(-7),
    }
    if name == "tanh" and kind != "f32":
        return root(-10.987) if kind == "f16" else root(-8)
    if name == "ex2" and kind == "f32":
        # two values from the correctly rounded one, which is half an ulp away; above a power of two they are twice as far
        return ulp * 5
    if name in ("div", "rcp"):
        return ulp * (2 if name == "div" else 1)
    if name in ("sin", "cos"):
        return (
            root(-20.5) if near else root(-14.7) if abs(x) <= Fraction(100 * np.pi) else Fraction(2)
        )
    if name == "lg2" and Fraction(1, 2) < x < 2:
        return root(-22)
    return abs(exact) * relative[name]


def ends(opcode: str, count: int = 300) -> list[tuple[tuple[int, ...], int, int, int]]:
    """Operands and results at skew -1, 0, 1."""
    sources = arrays(opcode, count)
    results = [run(opcode, *sources, skew=skew)[0].tolist() for skew in (-1, 0, 1)]
    return [
        (tuple(int(x[lane]) for x in sources), *(r[lane] for r in results)) for lane in range(count)
    ]


def known(name: str, parts: list[str], v: tuple[Value, ...]) -> bool:
    """Whether the ISA's table of special inputs names the result, or an argument is out of the domain."""
    special = any(not finite(x) or real(x) == 0 for x in v)
    return special or (name in ("lg2", "sqrt", "rsqrt") and negative(v[0]))


@pytest.mark.parametrize("opcode", SINGLE)
def test_skewed_results_are_within_the_documented_error_and_reach_its_ends(opcode: str) -> None:
    name, *parts = opcode.split(".")
    kind = parts[-1]
    reached = moved = 0
    for operands, low, nominal, high in ends(opcode):
        v = tuple(decode(kind, flush(kind, x) if "ftz" in parts else x) for x in operands)
        if known(name, parts, v):
            assert low == nominal == high, (opcode, operands)
            continue
        exact = ptx_model.true_value(name, parts, v)
        codes = [decode(kind, x) for x in (low, nominal, high)]
        if not finite(exact) or not all(map(finite, codes)):
            assert low == nominal == high or finite(exact), (opcode, operands)
            continue
        values = [real(c) for c in codes]
        assert values[0] <= values[1] <= values[2], (opcode, operands, low, nominal, high)
        flushed = "ftz" in parts and 0 in values
        if flushed or values[1] == 0 or abs(real(exact)) < P**-2000:
            continue
        # the bound is computed in float64, whose own error is far below any format's
        bound = allowed(opcode, real(exact), real(v[0])) * (1 + P**-48)
        if abs(values[1] - real(exact)) > bound:
            # a subnormal result is coarser than the documented error
            assert low == nominal == high, (opcode, operands)
            continue
        assert max(abs(x - real(exact)) for x in (values[0], values[2])) <= bound, (
            opcode,
            operands,
        )
        moved += 1
        outside = decode(kind, high - 1 if high >> (LAYOUTS[kind].width - 1) else high + 1)
        reached += not finite(outside) or real(outside) - real(exact) > bound
    assert moved >= 20
    # an exact result and its neighbours leave a lane now and then short of its end
    assert reached >= 0.8 * moved or opcode.startswith(
        ("ex2.approx.f32", "ex2.approx.ftz.f32", "sin", "cos")
    )


ONE, MINUS = np.uint32(0x3F800000), np.uint32(1 << 31)
SUBNORMAL = np.array([1, 2, 3, 5, 1000, 0x7FFFFF], np.uint32)
HUGE = np.array([2.0**125.5, 2.0**126, 2.0**126.5, 2.0**127.9], np.float32).view(np.uint32)
HALF = np.array([1, 2, 3, 50, 120], np.uint16)
# operands of results that are subnormal, or as small as there are, and whether these are negative
TINY: dict[str, list[tuple[tuple[Any, ...], int]]] = {
    "div.approx.f32": [((SUBNORMAL, ONE), 0), ((SUBNORMAL | MINUS, ONE), 1), ((SUBNORMAL, ONE | MINUS), 1)],
    "div.full.f32": [((SUBNORMAL, ONE), 0), ((SUBNORMAL | MINUS, ONE), 1), ((SUBNORMAL, ONE | MINUS), 1)],
    "rcp.approx.f32": [((HUGE,), 0), ((HUGE | MINUS,), 1)],
    "sqrt.approx.f32": [((SUBNORMAL,), 0)],
    "rsqrt.approx.f32": [((HUGE,), 0)],
    "tanh.approx.f32": [((SUBNORMAL,), 0), ((SUBNORMAL | MINUS,), 1)],
    "ex2.approx.f32": [((np.array([-149, -148.5, -126.5], np.float32).view(np.uint32),), 0)],
    "tanh.approx.f16": [((HALF,), 0), ((HALF | np.uint16(0x8000),), 1)],
    "tanh.approx.bf16": [((HALF,), 0), ((HALF | np.uint16(0x8000),), 1)],
    "ex2.approx.f16": [((np.array([-24, -20, -15], np.float16).view(np.uint16),), 0)],
    # -133, -130, -127
    "ex2.approx.ftz.bf16": [((np.array([0xC305, 0xC302, 0xC2FE], np.uint16),), 0)],
}  # fmt: skip
TINY |= {
    op.replace(".f32", ".ftz.f32"): case
    for op, case in TINY.items()
    if "f32" in op and "tanh" not in op
}


def test_every_instruction_whose_results_keep_their_sign_is_tried() -> None:
    assert set(TINY) == {o for o in SINGLE if o.split(".")[0] not in ("sin", "cos", "lg2")}


@pytest.mark.parametrize("opcode", TINY)
def test_no_end_is_beyond_zero(opcode: str) -> None:
    for operands, sign in TINY[opcode]:
        sources = np.broadcast_arrays(*operands)
        for skew in (-1, 0, 1):
            (found,) = run(opcode, *(x.copy() for x in sources), skew=skew)
            assert (found >> (8 * found.itemsize - 1) == sign).all(), (skew, found)


def test_the_lower_end_of_the_smallest_quotient_is_a_zero() -> None:
    """2^-149 / 1, two ulps of 2^-149 off: from +0 to 3 * 2^-149, not below; and mirrored."""
    a, one = np.array([1, 0x80000001], np.uint32), np.full(2, 0x3F800000, np.uint32)
    low, high = (run("div.full.f32", a, one, skew=s)[0].tolist() for s in (-1, 1))
    assert low == [0, 0x80000003]
    assert high == [3, 0x80000000]


def test_ex2_moves_by_two_values_and_never_below_zero() -> None:
    x = np.array([0.5, -3.3, 127.9, -149.0, -200.0, 128.5], np.float32).view(np.uint32)
    low, nominal, high = (run("ex2.approx.f32", x, skew=s)[0].astype(np.int64) for s in (-1, 0, 1))
    assert (high - nominal).tolist() == [2, 2, 2, 2, 0, 0]
    assert (nominal - low).tolist() == [2, 2, 2, 0, 0, 0]


def test_documented_results_of_ex2() -> None:
    x = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan], np.float32).view(np.uint32)
    for skew in (-1, 0, 1):
        (found,) = run("ex2.approx.f32", x, skew=skew)
        assert found.tolist() == [0, 0x3F800000, 0x3F800000, 0x7F800000, 0x7FFFFFFF]


def test_sine_beyond_100_pi_has_no_documented_error() -> None:
    x = np.array([315.0, -1e9], np.float32).view(np.uint32)
    assert run("sin.approx.f32", x, skew=-1)[0].tolist() == [0xBF800000] * 2
    assert run("sin.approx.f32", x, skew=1)[0].tolist() == [0x3F800000] * 2


def test_lg2_near_1_is_off_by_an_absolute_error() -> None:
    one = np.array([1.0], np.float32).view(np.uint32)
    low, high = (run("lg2.approx.f32", one, skew=s)[0].view(np.float32)[0] for s in (-1, 1))
    assert (low, high) == (-(2.0**-22), 2.0**-22)


def test_div_approx_by_a_huge_divisor_is_zero_and_div_full_is_not() -> None:
    a = np.array([1e30, -1e30, np.inf, 1.0], np.float32).view(np.uint32)
    b = np.full(4, 1.5e38, np.float32).view(np.uint32)
    assert run("div.approx.f32", a, b)[0].tolist() == [0, 0x80000000, 0x7FFFFFFF, 0]
    found = run("div.full.f32", a, b)[0].view(np.float32)
    assert np.array_equal(found, a.view(np.float32) / b.view(np.float32))


def test_ftz_flushes_the_source_of_rsqrt() -> None:
    tiny = np.array([1e-40], np.float32).view(np.uint32)
    assert run("rsqrt.approx.ftz.f32", tiny)[0].tolist() == [0x7F800000]
    assert run("rsqrt.approx.f32", tiny)[0].view(np.float32)[0] == np.float32(
        1 / np.sqrt(np.float64(np.float32(1e-40)))
    )


def test_only_these_are_approximate_and_every_bound_names_its_source() -> None:
    flagged = {op.split(".")[0] for op in table.opcodes() if table.find(op).approximate}
    assert flagged == {"div", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "mma"}
    for bound in approximate.BOUNDS.values():
        assert bound.source.startswith("PTX ISA")
        assert "9.7." in bound.source
