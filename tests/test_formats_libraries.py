"""Inputs that libraries round twice: ours gives the value of the one rounding.

Each row is a fault seen in a released library: float64 narrowed through float32 (torch 2.13,
ml_dtypes 0.6), longdouble through float32 and text through float64 (NumPy 2.4), mpf through 53
bits (mpmath 1.3). What the library gives today is reported, never asserted: a fixed library must
not fail this test.
"""

import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from contract.exactround import round_fraction, round_mpf
from contract.formats import decode, encode, get, round_to

# format, input, the right value, what a conversion through float32 gives
TWICE = [
    ("fp16", float.fromhex("0x1.0020000008p0"), 1.0009765625, 1.0),
    ("fp16", 1 + 2**-11 + 2**-40, 1.0009765625, 1.0),
    ("fp16", float.fromhex("0x1.0000000000001p-25"), 2.0**-24, 0.0),
    ("fp16", 65519.99999999999, 65504.0, np.inf),
    ("bf16", 1 + 2**-8 + 2**-40, 1.0078125, 1.0),
    ("bf16", float.fromhex("0x1.fefffffffffffp127"), 3.3895313892515355e38, np.inf),
    ("bf16", float.fromhex("0x1.0000000000001p-134"), 2.0**-133, 0.0),
    ("e4m3fn", float.fromhex("0x1.0000000000001p-10"), 0.001953125, 0.0),
    ("e4m3fn", 1.0625000000009095, 1.125, 1.0),
    ("e4m3fn", 464.00000000000006, np.nan, 448.0),
    ("e4m3fnuz", float.fromhex("0x1.0000000000001p-11"), 2.0**-10, 0.0),
    ("e5m2", float.fromhex("0x1.0000000000001p-17"), 1.52587890625e-05, 0.0),
    ("e2m1", 0.25000000000000006, 0.5, 0.0),
]


def check(got: float, expected: float, library: str, theirs: Callable[[], float]) -> None:
    """Asserts ours and prints what the library gives."""
    np.testing.assert_array_equal(got, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = theirs()
    print(f"{library}: {value!r}, right is {expected!r}")


@pytest.mark.parametrize(("fmt", "x", "expected", "twice"), TWICE)
def test_float64_is_rounded_once(fmt: str, x: float, expected: float, twice: float) -> None:
    # The row shows the fault: rounding through float32 gives the other value.
    through = round_to(round_to(x, "fp32"), fmt)
    np.testing.assert_array_equal(through, twice)
    for sign in (1.0, -1.0):
        np.testing.assert_array_equal(round_to(sign * x, fmt), sign * expected)
    np.testing.assert_array_equal(decode(encode(round_to(x, fmt), fmt), fmt), expected)
    np.testing.assert_array_equal(round_fraction(Fraction(x), fmt), expected)


TORCH = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
}


@pytest.mark.parametrize(("fmt", "x", "expected", "twice"), [r for r in TWICE if r[0] in TORCH])
def test_torch_narrows_through_float32(fmt: str, x: float, expected: float, twice: float) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, TORCH[fmt])

    def theirs() -> float:
        return float(torch.tensor(x, dtype=torch.float64).to(dtype).to(torch.float64))

    check(float(round_to(x, fmt)), expected, f"torch {fmt}", theirs)


ML_DTYPES = {
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e2m1": "float4_e2m1fn",
}


@pytest.mark.parametrize(("fmt", "x", "expected", "twice"), [r for r in TWICE if r[0] in ML_DTYPES])
def test_ml_dtypes_narrow_through_float32(
    fmt: str, x: float, expected: float, twice: float
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is an extra: [test]")
    dtype = getattr(ml_dtypes, ML_DTYPES[fmt])

    def theirs() -> float:
        return float(np.array([x]).astype(dtype).astype(np.float64)[0])

    check(float(round_to(x, fmt)), expected, f"ml_dtypes {fmt}", theirs)


def test_longdouble_is_refused_or_rounded_exactly() -> None:
    with warnings.catch_warnings():
        # NumPy warns where it does not know the machine's longdouble.
        warnings.simplefilter("ignore")
        x = np.longdouble(1) + np.longdouble(2) ** -11 + np.longdouble(2) ** -40
    if np.longdouble is not np.float64 and np.dtype(np.longdouble).itemsize > 8:
        with pytest.raises(TypeError, match="not exact in float64; use exactround"):
            round_to(x, "fp16")
    exact = 1 + Fraction(1, 2**11) + Fraction(1, 2**40)
    check(
        round_fraction(exact, "fp16"),
        1.0009765625,
        "numpy longdouble",
        lambda: float(np.float16(x)),
    )


def test_text_is_rounded_once() -> None:
    text = "1.000000059604644776"
    exact = Fraction(text)
    got = round_fraction(exact, "fp32")
    check(got, 1.0000001192092896, "numpy text to float32", lambda: float(np.float32(text)))
    # The row shows the fault: the nearest float64 is the midpoint.
    assert round_to(float(text), "fp32") == 1.0


@pytest.mark.parametrize("library", ["torch", "ml_dtypes"])
def test_integers_are_rounded_once(library: str) -> None:
    module = pytest.importorskip(library)
    x = 16973823

    def theirs() -> float:
        if library == "torch":
            return float(module.tensor(x, dtype=module.int64).to(module.bfloat16))
        return float(np.array([x]).astype(module.bfloat16)[0])

    check(float(round_to(x, "bf16")), 16908288.0, f"{library} int64 to bf16", theirs)
    assert round_to(round_to(x, "fp32"), "bf16") == 17039360.0


def test_mpf_to_a_subnormal_float64_is_rounded_once() -> None:
    with mpmath.workprec(200):
        x: Any = mpmath.ldexp(mpmath.mpf(0x3BFFFFFFFFFFFFF), -1129)
        check(round_mpf(x, "fp64"), 7 * 5e-324, "float(mpf)", lambda: float(x))


def test_mpf_to_float32_is_rounded_once() -> None:
    with mpmath.workprec(200):
        x: Any = 1 + mpmath.ldexp(1, -24) + mpmath.ldexp(1, -60)
        check(
            round_mpf(x, "fp32"),
            1.0000001192092896,
            "np.float32(mpf)",
            lambda: float(np.float32(x)),
        )


def test_an_infinity_and_an_overflow_are_two_policies() -> None:
    # torch saturates both to 448 since 2.13, ml_dtypes gives NaN for both.
    for x in (np.inf, 1e9, 465.0):
        assert np.isnan(round_to(x, "e4m3fn"))
        assert round_to(x, "e4m3fn", overflow="saturate") == 448.0
    assert np.isnan(round_to(np.inf, "e4m3fn", overflow="saturate", infinity="nan"))
    # ml_dtypes turns a NaN into -0 here.
    assert np.isnan(round_to(np.nan, "e2m1"))


def test_nans_are_one_class_whatever_their_bits() -> None:
    # torch gives 0xFFFF, ml_dtypes keeps the sign, NumPy keeps float16 payloads.
    for fmt, bits in (("bf16", 0xFFFF), ("bf16", 0xFFC0), ("fp16", 0x7C01)):
        assert np.isnan(decode(bits, fmt))
    assert encode(np.nan, "bf16") == 0x7FC0


# -- all codes, and all bf16 values

CODES = {
    **ML_DTYPES,
    "e8m0": "float8_e8m0fnu",
    "int4": "int4",
    "uint4": "uint4",
}
EVERY_BF16 = decode(np.arange(1 << 16, dtype=np.uint16), "bf16")


def same(got: Any, expected: Any) -> None:
    """Equal values, zeros with their signs, NaN as a class."""
    np.testing.assert_array_equal(got, expected)
    zero = np.equal(expected, 0)
    np.testing.assert_array_equal(np.signbit(got)[zero], np.signbit(expected)[zero])


@pytest.mark.parametrize("fmt", CODES)
def test_ml_dtypes_reads_every_code_alike(fmt: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is an extra: [test]")
    bits = get(fmt).bits
    codes = np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(getattr(ml_dtypes, CODES[fmt])).astype(np.float64)
    same(decode(codes, fmt), theirs)


@pytest.mark.parametrize("fmt", ["e5m2", "e4m3fn", "e4m3fnuz", "e2m1"])
def test_ml_dtypes_rounds_every_bf16_value_alike(fmt: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is an extra: [test]")
    # e2m1 has no NaN: what becomes of one is not compared
    x = EVERY_BF16[~np.isnan(EVERY_BF16)] if fmt == "e2m1" else EVERY_BF16
    with np.errstate(invalid="ignore", over="ignore"):
        theirs = x.astype(np.float32).astype(getattr(ml_dtypes, ML_DTYPES[fmt])).astype(np.float64)
    same(round_to(x, fmt, overflow="saturate" if fmt == "e2m1" else None), theirs)


def test_mlx_has_the_same_e4m3_and_saturates() -> None:
    mx = pytest.importorskip("mlx.core", reason="mlx is an extra: [formats]")
    codes = np.arange(256, dtype=np.uint8)
    same(decode(codes, "e4m3fn"), np.array(mx.from_fp8(mx.array(codes), mx.float32)))
    x = EVERY_BF16[~np.isnan(EVERY_BF16)]
    with np.errstate(over="ignore"):
        given = mx.array(x.astype(np.float32)).astype(mx.bfloat16)
    theirs = decode(np.array(mx.to_fp8(given)), "e4m3fn")
    same(round_to(x, "e4m3fn", overflow="saturate"), theirs)
    # a NaN becomes the largest value: no client of `cast`
    print(f"mlx to_fp8(nan): {decode(np.array(mx.to_fp8(mx.array([np.nan]))), 'e4m3fn')[0]}")
