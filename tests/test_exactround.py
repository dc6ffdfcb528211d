"""Exact rounding of fractions and mpmath numbers, on literal boundaries and against round_to."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from contract.exactround import round_fraction, round_mpf, round_scaled
from contract.formats import MODES, get, round_to


@pytest.mark.parametrize(
    ("x", "fmt", "expected"),
    [
        (Fraction(1, 3), "fp64", 1 / 3),
        (Fraction(1, 3), "bf16", 0.333984375),
        (1 + Fraction(1, 2**8), "bf16", 1.0),
        # Far below what float64 could show.
        (1 + Fraction(1, 2**8) + Fraction(1, 2**300), "bf16", 1.0078125),
        (Fraction(1, 2**10**5), "fp32", 0.0),
        (Fraction(10**400), "fp64", math.inf),
        (-Fraction(10**400), "e4m3fn", math.nan),
        (-Fraction(10**400), "e2m1", -6.0),
        (2**63 - 1, "fp32", 2.0**63),
        (2**53 + 1, "fp64", 2.0**53),
        (Fraction(-1, 2), "int8", 0.0),
        (-1000, "int8", -128.0),
        (2**70, "int64", float(2**63 - 1024)),
        (3, "e8m0", 4.0),
        (0, "e8m0", 2.0**-127),
        (-3, "e8m0", math.nan),
    ],
)
def test_fractions_round_once(x: Fraction, fmt: str, expected: float) -> None:
    r = round_fraction(x, fmt)
    assert r == expected or (math.isnan(r) and math.isnan(expected))


@pytest.mark.parametrize(
    ("mode", "up", "down"),
    [
        ("nearest_even", 1.0, -1.0),
        ("toward_zero", 1.0, -1.0),
        ("up", 1.0078125, -1.0),
        ("down", 1.0, -1.0078125),
        ("half_away", 1.0, -1.0),
        ("to_odd", 1.0078125, -1.0078125),
    ],
)
def test_directions(mode: Any, up: float, down: float) -> None:
    x = 1 + Fraction(1, 2**200)
    assert round_fraction(x, "bf16", mode) == up
    assert round_fraction(-x, "bf16", mode) == down


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["fp32", "bf16", "e4m3fnuz", "e2m1", "e8m0", "int4", "uint8"])
def test_arrays_and_integers_agree(fmt: str, mode: Any) -> None:
    rng = np.random.default_rng(11)
    f = get(fmt)
    scale = rng.choice([f.smallest, 1.0, abs(f.max)], 400)
    x = scale * rng.integers(-40, 40, 400) / rng.choice([8, 7, 16], 400)
    exact = [round_fraction(Fraction(v), fmt, mode) for v in x.tolist()]
    # Adding +0 drops the sign of zeros, which a fraction does not have.
    np.testing.assert_array_equal(round_to(x, fmt, mode) + 0.0, np.array(exact) + 0.0)


def test_mpf_does_not_depend_on_the_working_precision() -> None:
    with mpmath.workprec(300):
        x = 1 + mpmath.ldexp(1, -24) + mpmath.ldexp(1, -250)
    assert round_mpf(x, "fp32") == 1 + 2.0**-23
    assert round_mpf(-x, "fp32", "up") == -1.0


def test_mpf_specials() -> None:
    assert round_mpf(mpmath.mpf("inf"), "fp16") == math.inf
    assert round_mpf(mpmath.mpf("-inf"), "fp16", overflow="saturate") == -65504.0
    assert round_mpf(mpmath.mpf("-inf"), "fp16", infinity="saturate") == -65504.0
    assert math.isnan(round_mpf(mpmath.mpf("nan"), "fp16"))
    assert math.isnan(round_mpf(mpmath.mpf("-inf"), "e8m0", infinity="saturate"))
    assert round_mpf(mpmath.mpf(0), "fp16") == 0.0
    # The exponents are never written out as integers.
    assert round_mpf(mpmath.ldexp(3, 10**12), "bf16") == math.inf
    assert round_mpf(mpmath.ldexp(3, -(10**12)), "bf16", "up") == 2.0**-133
    assert math.copysign(1.0, round_mpf(-mpmath.ldexp(3, -(10**12)), "bf16")) == -1.0


def test_scaled_integers_refuse_a_negative_mantissa() -> None:
    assert round_scaled(1, 3, -1, "fp16") == -1.5
    with pytest.raises(ValueError, match="man must not be negative, got -1"):
        round_scaled(0, -1, 0, "fp16")
