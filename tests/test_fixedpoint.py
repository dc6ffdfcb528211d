"""FixedPoint32: one rounding, the ends of int32, and named refusals."""

import numpy as np
import pytest

from contract.fixedpoint import quantize, to_float64


def test_codes_round_to_even_once() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994, 0.0, -0.0])
    np.testing.assert_array_equal(quantize(x, 0), [0, 2, 2, 0, -2, 0, 0, 0])
    np.testing.assert_array_equal(quantize(x, 1), [1, 3, 5, -1, -3, 1, 0, 0])
    assert quantize(x, 16).dtype == np.int64
    assert quantize(768.0, -8) == 3


def test_the_ends_saturate() -> None:
    x = np.array([1e9, -1e9, np.inf, -np.inf, 32767.99999, 1e308])
    expected = [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2147483647, 2**31 - 1]
    np.testing.assert_array_equal(quantize(x, 16), expected)


@pytest.mark.parametrize("value", [32768.0, 32767.999993, np.inf, -32768.00001])
def test_a_value_beyond_the_ends_is_named(value: float) -> None:
    message = (
        rf"^{value!r} at index \(0, 1\) does not fit FixedPoint32 with 16 fraction bits: -32768"
    )
    with pytest.raises(OverflowError, match=message):
        quantize([[1.0, value]], 16, "raise")
    assert quantize(-32768.0, 16, "raise") == -(2**31)
    assert quantize(32767.99999, 16, "raise") == 2**31 - 1


def test_nan_and_a_wrong_policy_are_refused() -> None:
    with pytest.raises(ValueError, match=r"NaN at index \(1,\) has no FixedPoint32 code"):
        quantize([0.0, np.nan], 8)
    with pytest.raises(ValueError, match="overflow 'wrap' is not one of saturate, raise"):
        quantize(0.0, 8, "wrap")  # type: ignore[arg-type]  # the refusal is what is tested


def test_values_of_codes_are_exact() -> None:
    codes = np.array([1, -(2**31), 2**53])
    np.testing.assert_array_equal(to_float64(codes, 20), [2.0**-20, -2048.0, 2.0**33])
    random = np.random.default_rng(0).integers(-(2**31), 2**31, 1000)
    np.testing.assert_array_equal(quantize(to_float64(random, 24), 24), random)
    with pytest.raises(OverflowError, match=r"code 9007199254740993 at index \(\) is not exact"):
        to_float64(2**53 + 1, 0)
