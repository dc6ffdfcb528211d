"""Codes, ordered integers and neighbours: exhaustive for every format of at most 16 bits."""

import re
from typing import Any

import numpy as np
import pytest

from contract import formats
from contract.errors import DeclarationError
from contract.formats import decode, encode, from_ordered, get, is_nan, ordered, ulp_distance

FLOATS = ["bf16", "fp16", "e5m2", "e4m3fn", "e4m3fnuz", "e2m1"]
CODED = [*FLOATS, "e8m0", "bool", "uint4", "uint8", "int4", "int8", "int16"]


def codes_of(name: str) -> Any:
    return np.arange(2 ** get(name).bits).astype(get(name).storage)


@pytest.mark.parametrize("name", CODED)
def test_every_code_comes_back(name: str) -> None:
    codes = codes_of(name)
    values = decode(codes, name)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values, name)[number], codes[number])
    assert encode(values, name).dtype == get(name).storage


@pytest.mark.parametrize(
    ("name", "nans"),
    [
        ("bf16", 2 * 127),
        ("fp16", 2 * 1023),
        ("e5m2", 6),
        ("e4m3fn", 2),
        ("e4m3fnuz", 1),
        ("e2m1", 0),
        ("e8m0", 1),
        ("int4", 0),
        ("bool", 0),
    ],
)
def test_number_of_nans(name: str, nans: int) -> None:
    assert is_nan(codes_of(name), name).sum() == nans
    assert formats.all_values(name).size == codes_of(name).size - nans - 2 * get(name).has_inf


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("fp64", -1.0, 0xBFF0000000000000),
        ("fp64", 5e-324, 1),
        ("fp32", -0.0, 0x80000000),
        ("fp32", 2.0**-149, 1),
        ("fp32", np.nan, 0x7FC00000),
        ("tf32", 1.0009765625, 0x3F802000),
        ("tf32", -np.inf, 0xFF800000),
        ("tf32", np.nan, 0x7FC00000),
        ("bf16", 1.0078125, 0x3F81),
        ("bf16", np.nan, 0x7FC0),
        ("fp16", 65504.0, 0x7BFF),
        ("fp16", np.inf, 0x7C00),
        ("fp16", np.nan, 0x7E00),
        ("e5m2", 57344.0, 0x7B),
        ("e5m2", np.nan, 0x7E),
        ("e4m3fn", 448.0, 0x7E),
        ("e4m3fn", -(2.0**-9), 0x81),
        ("e4m3fn", np.nan, 0x7F),
        ("e4m3fnuz", 240.0, 0x7F),
        ("e4m3fnuz", -(2.0**-10), 0x81),
        ("e4m3fnuz", np.nan, 0x80),
        ("e2m1", -6.0, 0xF),
        ("e2m1", 0.5, 1),
        ("e8m0", 1.0, 127),
        ("int4", -1.0, 0xF),
        ("int8", -128.0, 0x80),
        ("int32", -1.0, 0xFFFFFFFF),
        ("int64", -(2.0**63), 0x8000000000000000),
        ("uint8", 255.0, 0xFF),
        ("bool", 1.0, 1),
    ],
)
def test_codes_of_the_standards(name: str, value: float, code: int) -> None:
    assert int(encode(value, name)) == code
    np.testing.assert_array_equal(decode(code, name), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", 1.001),
        ("fp16", 65536.0),
        ("fp32", 1e300),
        ("fp32", 2.0**-150),
        ("tf32", 1.0 + 2.0**-20),
        ("e4m3fn", np.inf),
        ("e4m3fn", 480.0),
        ("e4m3fnuz", -0.0),
        ("e2m1", 8.0),
        ("e8m0", 0.0),
        ("e8m0", -1.0),
        ("e8m0", 3.0),
        ("int8", 128.0),
        ("int8", -0.0),
        ("int8", np.inf),
        ("uint4", -1.0),
        ("bool", 0.5),
    ],
)
def test_a_value_without_a_code_is_named(name: str, value: float) -> None:
    message = re.escape(f"{value!r} at index (1, 0) is not a value of {name}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        encode([[1.0], [value]], name)


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16"])
def test_ieee_codes_are_those_of_numpy(name: str) -> None:
    f = get(name)
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**f.bits, 20_000, dtype=np.uint64).astype(f.storage)
    with np.errstate(invalid="ignore"):
        values = bits.view(f"f{f.bits // 8}").astype(np.float64)
    np.testing.assert_array_equal(decode(bits, name), values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values[number], name), bits[number])


@pytest.mark.parametrize("name", CODED)
def test_ordered_integers_follow_the_values(name: str) -> None:
    codes = codes_of(name)
    codes = codes[~is_nan(codes, name)]
    order = ordered(codes, name)
    np.testing.assert_array_equal(from_ordered(order, name), codes)
    ranked = np.sort(order)
    assert (np.diff(ranked) == 1).all()
    values = decode(from_ordered(ranked, name), name)
    # -0 and +0 compare equal; every other step goes up.
    flat = values[1:] == values[:-1]
    assert flat.sum() == (1 if get(name).has_negative_zero else 0)
    assert (values[1:] >= values[:-1]).all()


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", *FLOATS])
def test_zeros_are_minus_one_and_zero(name: str) -> None:
    assert ordered(encode(0.0, name), name) == 0
    smallest = get(name).smallest
    assert ordered(encode(smallest, name), name) == 1
    below = -2 if get(name).has_negative_zero else -1
    assert ordered(encode(-smallest, name), name) == below
    if get(name).has_negative_zero:
        assert ordered(encode(-0.0, name), name) == -1


@pytest.mark.parametrize("name", [n for n in formats.FORMATS if get(n).has_nan])
def test_nans_lie_beyond_both_ends(name: str) -> None:
    f = get(name)
    order = int(ordered(f.nan_code, f))
    ends = [ordered(encode(v, f), f) for v in (f.lowest, f.max)]
    assert order < ends[0] or order > ends[1]


def test_distances_are_steps() -> None:
    def steps(a: float, b: float, name: str) -> int:
        return int(ulp_distance(encode(a, name), encode(b, name), name))

    far = 2**63 - 1
    assert steps(1.0, 1.0078125, "bf16") == 1
    assert steps(1.0078125, 1.0, "bf16") == 1
    assert steps(1.0, 1.0009765625, "tf32") == 1
    assert steps(-0.0, 0.0, "fp32") == 1
    assert steps(-(2.0**-149), 2.0**-149, "fp32") == 3
    assert steps(-(2.0**-10), 2.0**-10, "e4m3fnuz") == 2
    assert steps(-8.0, 7.0, "int4") == 15
    assert steps(np.nan, np.nan, "fp16") == 0
    assert steps(np.nan, 1.0, "fp16") == far
    assert steps(-np.inf, np.inf, "fp64") == far


@pytest.mark.parametrize("name", FLOATS)
def test_next_values_are_the_neighbours(name: str) -> None:
    f = get(name)
    values = formats.all_values(name)
    values = values[~((values == 0) & np.signbit(values))]
    np.testing.assert_array_equal(formats.next_up(values[:-1], name), values[1:])
    np.testing.assert_array_equal(formats.next_down(values[1:], name), values[:-1])
    assert formats.next_up(f.max, name) == (np.inf if f.has_inf else f.max)
    assert formats.next_down(f.lowest, name) == (-np.inf if f.has_inf else f.lowest)
    assert formats.next_up(-0.0 if f.has_negative_zero else 0.0, name) == f.smallest
    assert np.signbit(formats.next_up(-f.smallest, name)) == f.has_negative_zero
    assert not np.signbit(formats.next_down(f.smallest, name))
    if f.has_nan:
        assert np.isnan(formats.next_up(np.nan, name))
    if f.has_inf:
        assert formats.next_up(-np.inf, name) == f.lowest
        assert formats.next_up(np.inf, name) == np.inf


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_next_values_are_those_of_numpy(name: str) -> None:
    f = get(name)
    kind = np.dtype(f"f{f.bits // 8}")
    bits = np.random.default_rng(5).integers(0, 2**f.bits, 5_000, dtype=np.uint64).astype(f.storage)
    with np.errstate(all="ignore"):
        x = bits.view(kind)
        x = np.concatenate([x[np.isfinite(x)], np.array([0.0, f.max, -f.max, f.smallest], kind)])
        up, down = np.nextafter(x, kind.type(np.inf)), np.nextafter(x, kind.type(-np.inf))
    np.testing.assert_array_equal(formats.next_up(x, name), up.astype(np.float64))
    np.testing.assert_array_equal(formats.next_down(x, name), down.astype(np.float64))


def test_next_integers_and_scales_stop_at_the_ends() -> None:
    np.testing.assert_array_equal(formats.next_up([-8.0, 6.0, 7.0], "int4"), [-7.0, 7.0, 7.0])
    np.testing.assert_array_equal(formats.next_down([-8.0, 7.0], "int4"), [-8.0, 6.0])
    np.testing.assert_array_equal(formats.next_up([1.0, 2.0**127], "e8m0"), [2.0, 2.0**127])
    np.testing.assert_array_equal(formats.next_down([1.0, 2.0**-127], "e8m0"), [0.5, 2.0**-127])


@pytest.mark.parametrize(
    ("x", "name", "expected"),
    [
        (1.0, "bf16", 2.0**-7),
        (-1.99, "bf16", 2.0**-7),
        (2.0, "fp32", 2.0**-22),
        (0.0, "fp32", 2.0**-149),
        (1e-300, "fp16", 2.0**-24),
        (0.0, "fp64", 5e-324),
        (448.0, "e4m3fn", 32.0),
        (3.0, "e8m0", 2.0),
        (100.0, "int8", 1.0),
        (np.inf, "bf16", np.nan),
        (np.nan, "int8", np.nan),
    ],
)
def test_ulp_is_the_spacing_of_the_binade(x: float, name: str, expected: float) -> None:
    np.testing.assert_array_equal(formats.ulp(x, name), expected)


def test_all_values_refuses_long_formats() -> None:
    with pytest.raises(DeclarationError, match=r"fp32 has 2\*\*32 codes"):
        formats.all_values("fp32")
    np.testing.assert_array_equal(formats.all_values("bool"), [0.0, 1.0])
    np.testing.assert_array_equal(formats.all_values("int4"), np.arange(-8.0, 8.0))
