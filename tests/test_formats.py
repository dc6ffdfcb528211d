"""Rounding of every boundary of every format, against searches written here and against gfloat.

The rule under test: a float64 x between two neighbouring values of a format becomes one of them,
by x itself (never by a value rounded before), and a value beyond the range what its policy says.
"""

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from contract.errors import ContractError
from contract.exactround import round_fraction
from contract.formats import MODES, decode, encode, get, round_to

Floats = NDArray[np.float64]

# name: precision, lowest normal exponent, largest finite value, infinities, a negative zero
FACTS = {
    "fp32": (24, -126, 3.4028234663852886e38, True, True),
    "tf32": (11, -126, 3.4011621342146535e38, True, True),
    "bf16": (8, -126, 3.3895313892515355e38, True, True),
    "fp16": (11, -14, 65504.0, True, True),
    "e5m2": (3, -14, 57344.0, True, True),
    "e4m3fn": (4, -6, 448.0, False, True),
    "e4m3fnuz": (4, -7, 240.0, False, False),
    "e2m1": (2, 0, 6.0, False, True),
}
TABLED = ["bf16", "fp16", "e5m2", "e4m3fn", "e4m3fnuz", "e2m1"]
INTEGERS = ["bool", "uint4", "uint8", "int4", "int8", "int16", "int32"]


@cache
def magnitudes(name: str) -> Floats:
    """Every magnitude of the format and the one that would follow, by counting significands."""
    precision, emin, top, *_ = FACTS[name]
    whole = np.arange(2 ** (precision - 1), 2**precision, dtype=np.float64)
    subnormal = np.ldexp(whole - whole[0], emin - precision + 1)
    top_exponent = math.frexp(top)[1] - 1
    binades = [np.ldexp(whole, e - precision + 1) for e in range(emin, top_exponent + 2)]
    grid = np.concatenate([subnormal, *binades])
    return grid[: int(np.searchsorted(grid, top)) + 2]


def sampled_centres(name: str, size: int) -> Floats:
    """Random values and midpoints of the format, from half the smallest value to beyond the range."""
    precision, emin, top, *_ = FACTS[name]
    rng = np.random.default_rng(7)
    exponents = rng.integers(emin - precision - 2, math.frexp(top)[1] + 1, size)
    # One bit more than the format has: the odd ones are midpoints.
    whole = rng.integers(2**precision, 2 ** (precision + 1), size).astype(np.float64)
    return np.ldexp(whole, exponents - precision)


@cache
def boundaries(name: str) -> Floats:
    """Values, midpoints and neighbours of both within 3 float64 ulps, both signs, and specials.

    Every one of a format of at most 16 bits, samples of the others.
    """
    if name in TABLED:
        grid = magnitudes(name)
        centres = np.concatenate([grid, grid[:-1] / 2 + grid[1:] / 2])
    else:
        centres = sampled_centres(name, 20_000)
    near = [centres]
    for direction in (np.inf, -np.inf):
        step = centres
        for _ in range(3):
            step = np.nextafter(step, direction)
            near.append(step)
    rng = np.random.default_rng(20240 + len(name))
    wild = rng.integers(0, 2**63, 50_000, dtype=np.uint64).view(np.float64)
    usual = rng.standard_normal(50_000)
    special = [0.0, np.inf, np.nan, 5e-324, 1e-310, 1e308, 2.0**980, np.finfo(np.float64).max]
    x = np.concatenate([*near, wild, usual, special])
    return np.concatenate([x, -x])


def search(x: Floats, name: str, mode: str) -> Floats:
    """The rule, by bisection in the table of magnitudes; default policies."""
    _, _, top, has_inf, has_negative_zero = FACTS[name]
    grid = magnitudes(name)
    a, negative = np.abs(x), np.signbit(x)
    at = np.clip(np.searchsorted(grid, a, side="right") - 1, 0, len(grid) - 2)
    low, high = grid[at], grid[at + 1]
    middle = low / 2 + high / 2
    # Values of even position have an even significand: a binade holds an even number of them.
    even = at % 2 == 0
    away = {
        "nearest_even": (a > middle) | ((a == middle) & ~even),
        "half_away": a >= middle,
        "toward_zero": np.zeros(x.shape, bool),
        "up": (a > low) & ~negative,
        "down": (a > low) & negative,
        "to_odd": (a > low) & even,
    }[mode]
    r = np.where(away, high, low)
    stays = {
        "toward_zero": np.ones(x.shape, bool),
        "to_odd": np.ones(x.shape, bool),
        "up": negative,
        "down": ~negative,
    }.get(mode, np.zeros(x.shape, bool))
    over = np.inf if has_inf else top if name == "e2m1" else np.nan
    beyond = (r > top) | (a > grid[-1])
    r = np.where(beyond, np.where(stays & np.isfinite(a), top, over), r)
    r = np.copysign(np.where(np.isnan(x), np.nan, r), x)
    return r if has_negative_zero else r + 0.0


def assert_same(got: Floats, expected: Floats, x: Floats) -> None:
    """Equal values and zero signs, NaN as a class; the first differences are printed."""
    same = (got == expected) & (np.signbit(got) == np.signbit(expected))
    wrong = ~(same | (np.isnan(got) & np.isnan(expected)))
    shown = [(float(x[i]).hex(), got[i], expected[i]) for i in np.flatnonzero(wrong)[:5]]
    assert not wrong.any(), f"{wrong.sum()} of {x.size} differ; x, got, expected: {shown}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TABLED)
def test_every_boundary_rounds_as_a_table_search_says(name: str, mode: Any) -> None:
    x = boundaries(name)
    assert x.size > 100_000
    assert_same(round_to(x, name, mode), search(x, name, mode), x)


def by_fraction(x: float, name: str, mode: str) -> float:
    """The rule on one finite value, in fractions; default policies."""
    precision, emin, top, has_inf, has_negative_zero = FACTS[name]
    a, negative = abs(Fraction(x)), math.copysign(1.0, x) < 0
    # a is m * 2**-k with an odd m, or 0.
    exponent = a.numerator.bit_length() - a.denominator.bit_length() if a else emin
    spacing = Fraction(2) ** (max(exponent, emin) - precision + 1)
    low = a // spacing
    rest = a / spacing - low
    up = {
        "nearest_even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
        "half_away": rest >= Fraction(1, 2),
        "toward_zero": False,
        "up": rest > 0 and not negative,
        "down": rest > 0 and negative,
        "to_odd": rest > 0 and low % 2 == 0,
    }[mode]
    r = (low + up) * spacing
    if r > Fraction(top):
        keeps = mode in ("toward_zero", "to_odd") or mode == ("up" if negative else "down")
        r_float = top if keeps or name == "e2m1" else math.inf if has_inf else math.nan
    else:
        r_float = float(r)
    return -r_float if negative and (r_float or has_negative_zero) else r_float


@pytest.mark.parametrize("name", FACTS)
def test_samples_round_as_fractions_say(name: str) -> None:
    centres = sampled_centres(name, 200)
    top = FACTS[name][2]
    x = np.concatenate([centres, np.nextafter(centres, np.inf), np.nextafter(centres, 0.0)])
    x = np.concatenate([x, -x, [0.0, -0.0, top, -top, 1e300, -1e-300]])
    for mode in MODES:
        expected = np.array([by_fraction(v, name, mode) for v in x.tolist()])
        assert_same(round_to(x, name, mode), expected, x)
        integers = np.array([round_fraction(Fraction(v), name, mode) for v in x.tolist()])
        # A fraction has no negative zero to keep.
        expected[x == 0] = 0.0
        assert_same(integers, expected, x)


GFLOAT = {
    "fp32": "format_info_binary32",
    "bf16": "format_info_bfloat16",
    "fp16": "format_info_binary16",
    "e5m2": "format_info_ocp_e5m2",
    "e4m3fn": "format_info_ocp_e4m3",
    "e2m1": "format_info_ocp_e2m1",
}
# Facts of formats that gfloat 0.5 describes but does not list.
GFLOAT_FACTS: dict[str, dict[str, Any]] = {
    "tf32": {"k": 19, "precision": 11, "bias": 127, "num_high_nans": 1023, "has_nz": True},
    "e4m3fnuz": {"k": 8, "precision": 4, "bias": 8, "num_high_nans": 0, "has_nz": False},
}
GFLOAT_MODES = {
    "nearest_even": "TiesToEven",
    "half_away": "TiesToAway",
    "toward_zero": "TowardZero",
    "up": "TowardPositive",
    "down": "TowardNegative",
}


def gfloat_format(name: str) -> Any:
    gfloat = pytest.importorskip("gfloat", reason="gfloat is an extra: [test]")
    if name in GFLOAT:
        return getattr(pytest.importorskip("gfloat.formats"), GFLOAT[name])
    domain = gfloat.Domain.Extended if FACTS[name][3] else gfloat.Domain.Finite
    facts = GFLOAT_FACTS[name]
    flags = {"is_signed": True, "has_subnormals": True, "is_twos_complement": False}
    return gfloat.FormatInfo(name=name, domain=domain, **facts, **flags)


@pytest.mark.parametrize("mode", GFLOAT_MODES)
@pytest.mark.parametrize("name", FACTS)
def test_gfloat_rounds_the_same(name: str, mode: Any) -> None:
    gfloat = pytest.importorskip("gfloat", reason="gfloat is an extra: [test]")
    info = gfloat_format(name)
    x = boundaries(name)
    rounding = getattr(gfloat.RoundMode, GFLOAT_MODES[mode])
    if not get(name).has_nan:
        x = x[~np.isnan(x)]
    else:
        with np.errstate(all="ignore"):
            theirs = gfloat.round_ndarray(info, x, rounding)
        assert_same(round_to(x, name, mode), theirs, x)
    with np.errstate(all="ignore"):
        theirs = gfloat.round_ndarray(info, x, rounding, sat=True)
    r = round_to(x, name, mode, overflow="saturate")
    assert_same(r, theirs, x)


@pytest.mark.parametrize("name", TABLED)
def test_gfloat_decodes_the_same(name: str) -> None:
    gfloat = pytest.importorskip("gfloat", reason="gfloat is an extra: [test]")
    codes = np.arange(2 ** get(name).bits)
    theirs = gfloat.decode_ndarray(gfloat_format(name), codes)
    assert_same(decode(codes, name), theirs, codes.astype(np.float64))


@pytest.mark.parametrize("name", FACTS)
def test_facts_are_those_of_the_standards(name: str) -> None:
    f = get(name)
    facts = (f.precision, f.emin, f.max, f.has_inf, f.has_negative_zero)
    assert facts == FACTS[name]
    assert f.lowest == -f.max
    assert f.tiny == 2.0**f.emin
    assert f.smallest == 2.0 ** (f.emin - f.precision + 1)
    assert f.u == 2.0**-f.precision


def test_float64_stays_as_it_is() -> None:
    x = np.array([0.0, -0.0, 5e-324, -np.inf, np.nan, 1e308])
    assert_same(round_to(x, "fp64", "up"), x, x)
    assert not np.shares_memory(round_to(x, "fp64"), x)
    assert round_to(-np.inf, "fp64", infinity="saturate") == -np.finfo(np.float64).max


def test_float32_beyond_the_range_follows_the_policy() -> None:
    half = float.fromhex("0x1.ffffffp127")
    assert round_to(half, "fp32") == np.inf
    assert round_to(np.nextafter(half, 0), "fp32") == get("fp32").max
    assert round_to(half, "fp32", overflow="saturate") == get("fp32").max
    assert round_to([np.inf, half], "fp32", infinity="nan")[1] == np.inf
    assert np.isnan(round_to([np.inf, half], "fp32", infinity="nan")[0])


@pytest.mark.parametrize(
    ("x", "name", "overflow", "infinity", "expected"),
    [
        (465.0, "e4m3fn", None, None, np.nan),
        # The midpoint between 448 and the missing 480 goes to the even 448.
        (464.0, "e4m3fn", None, None, 448.0),
        (464.0000000000001, "e4m3fn", "saturate", None, 448.0),
        (-np.inf, "e4m3fn", "saturate", None, -448.0),
        (-np.inf, "e4m3fn", "saturate", "nan", np.nan),
        (np.inf, "fp16", "saturate", "inf", np.inf),
        (65520.0, "fp16", None, None, np.inf),
        (65519.99999999999, "fp16", None, None, 65504.0),
        (65520.0, "fp16", "nan", None, np.nan),
        (np.inf, "fp16", None, "saturate", 65504.0),
        # The largest e4m3fnuz value is odd: the midpoint overflows.
        (248.0, "e4m3fnuz", None, None, np.nan),
        (-1e9, "e2m1", None, None, -6.0),
        (np.inf, "e2m1", None, None, 6.0),
        (1e300, "bf16", "saturate", None, 3.3895313892515355e38),
    ],
)
def test_values_beyond_the_range_follow_the_policy(
    x: float, name: str, overflow: Any, infinity: Any, expected: float
) -> None:
    np.testing.assert_array_equal(round_to(x, name, "nearest_even", overflow, infinity), expected)


def test_nan_survives_in_a_format_without_one() -> None:
    assert np.isnan(round_to(np.nan, "e2m1"))
    assert np.isnan(round_to(np.nan, "int8"))
    with pytest.raises(ValueError, match=r"nan at index \(1,\) is not a value of e2m1"):
        encode([1.0, np.nan], "e2m1")


def test_half_away_does_not_add_a_half() -> None:
    assert round_to(0.49999999999999994, "int8", "half_away") == 0.0
    assert round_to(0.49999999999999994 * 2.0**-24, "fp16", "half_away") == 0.0


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_round_to_even_and_saturate(name: str) -> None:
    f = get(name)
    x = np.array([-1e9, -128.5, -8.5, -1.5, -0.5, 0.5, 1.5, 2.5, 7.5, 15.5, 255.5, 1e10, np.inf])
    expected = [min(max(float(round(v)), f.lowest), f.max) for v in x[:-1].tolist()]
    assert_same(round_to(x, name), np.array([*expected, f.max]) + 0.0, x)
    assert round_to([-3e9], "int32") == -(2.0**31)


def test_scales_are_powers_of_two() -> None:
    x = np.array([1.0, 1.4999, 1.5, 3.0, 0.0, 1e-300, 2.0**127 * 1.5, 1e300, -1.0, np.inf, -np.inf])
    low, nan = 2.0**-127, np.nan
    assert_same(round_to(x, "e8m0"), np.array([1, 1, 2, 4, low, low, *[nan] * 5]), x)
    r = np.array([1, 1, 1, 2, low, low, 2.0**127, 2.0**127, nan, nan, nan])
    assert_same(round_to(x, "e8m0", "toward_zero"), r, x)
    up = round_to([1.0, 1.0001, 2.0**-127 * 1.5], "e8m0", "up")
    np.testing.assert_array_equal(up, [1.0, 2.0, 2.0**-126])
    np.testing.assert_array_equal(
        encode([2.0**-127, 1.0, 2.0**127, nan], "e8m0"), [0, 127, 254, 255]
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3), (70_001,)])
def test_shape_and_input_are_kept(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 1.001)
    r = round_to(x, "bf16")
    assert r.shape == shape
    assert r.dtype == np.float64
    assert (x == 1.001).all()
    assert (r == 1.0).all()
    assert (round_to(np.full((4, 6), 1.001)[::2, ::3], "fp16") == 1.0009765625).all()


@pytest.mark.parametrize(
    "x",
    [
        np.array([2**53 + 1]),
        np.array([2**64 - 1], np.uint64),
        np.array([Fraction(1, 3)], object),
        np.array([1j]),
        "1.5",
    ],
)
def test_an_inexact_conversion_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match="exact in float64"):
        round_to(x, "bf16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bf17",), r"format 'bf17' is not known; known are fp64, fp32, tf32, bf16"),
        ((["bf16"],), r"format \['bf16'\] is not known"),
        (("bf16", "rne"), r"rounding mode 'rne' is not known; known are nearest_even"),
        (("bf16", "up", "clip"), r"overflow 'clip' is not one of inf, nan, saturate"),
        (("e4m3fn", "up", "inf"), r"overflow='inf': e4m3fn has no infinity"),
        (("e4m3fn", "up", "nan", "inf"), r"infinity='inf': e4m3fn has no infinity"),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        round_to(1.0, *arguments)
