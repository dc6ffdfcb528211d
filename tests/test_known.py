"""Known numbers of a reference: integer operands, what is computed from them exactly, lookups, int32 products."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from contract.declare import Contract, Profile, output, tensor
from contract.endpoints import Freedom, Interval
from contract.errors import DeclarationError
from contract.orders import AnyOrder, accumulator
from contract.products import dot_range
from contract.readings.audit import AuditReading
from contract.readings.base import Reading
from contract.readings.range import RangeReading
from contract.readings.sample import SampleReading

READINGS = (RangeReading, SampleReading, AuditReading)


def reading(kind: Any) -> Reading:
    contract = Contract(
        "known",
        "test",
        lambda r, x: r.round("out", x),
        (tensor("x", "rows n"), output("out", "rows n")),
        (Profile("once", {"out": "bf16"}),),
        ("rows",),
        ({"rows": 1, "n": 1},),
        freedoms={"dot": "any order"},
        not_applicable={"exact": "a toy"},
    )
    made: Reading = kind(contract, contract.profiles[0])
    return made


def floats(payload: Any) -> Any:
    """The payload's values, of a one-value range too."""
    if isinstance(payload, Interval):
        assert payload.same
        payload = payload.lo
    return np.asarray(payload, np.float64)


@pytest.mark.parametrize("kind", READINGS)
def test_integers_are_known_and_lead_back(kind: Any) -> None:
    r = reading(kind)
    codes = r.wrap(r.load(np.array([[3.0, -8.0, 7.0]]), narrow=True))
    whole = r.integers(codes)
    assert whole.dtype == np.int64
    assert whole.tolist() == [[3, -8, 7]]
    back = r.exactly(whole << 20)
    assert floats(back.v).tolist() == [[3 << 20, -8 << 20, 7 << 20]]


@pytest.mark.parametrize("kind", READINGS)
@pytest.mark.parametrize("value", [0.5, np.nan, 2.0**60])
def test_what_is_no_integer_is_refused(kind: Any, value: float) -> None:
    r = reading(kind)
    x = r.wrap(r.load(np.array([value]), narrow=True))
    with pytest.raises(DeclarationError, match=r"r\.integers"):
        r.integers(x)


def test_a_computed_value_is_not_known() -> None:
    r = reading(RangeReading)
    x = r.wrap(r.load(np.array([1.0]), narrow=True))
    with pytest.raises(DeclarationError, match="not known"):
        r.integers(x / 3.0)


@pytest.mark.parametrize("kind", READINGS)
def test_take_moves_rows(kind: Any) -> None:
    r = reading(kind)
    table = r.wrap(r.load(np.arange(6.0).reshape(3, 2), narrow=True))
    taken = r.take(table, np.array([2, 0, 2]))
    assert floats(taken.v).tolist() == [[4, 5], [0, 1], [4, 5]]


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**54])
def test_integers_beyond_float64_lie_inside_their_range(value: int) -> None:
    exact = reading(RangeReading).exactly(np.array([value])).v
    assert int(exact.lo[0]) <= value <= int(exact.hi[0])
    assert (exact.lo[0] == exact.hi[0]) == (float(value) == value)
    # not an fp32 value: the next step must round it, or keep it
    assert not exact.narrow or value == 2**54
    audit = reading(AuditReading).exactly(np.array([value])).v
    assert audit[0] == mpmath.mpf(value)


def test_a_converted_sum_is_kept_or_rounded() -> None:
    r = reading(RangeReading)
    total = r.converted(r.exactly(np.array([2**24 + 1]))).v
    assert (total.lo[0], total.hi[0]) == (2.0**24, 2.0**24 + 1)


def test_products_of_codes_are_exact_integers_beyond_24_bits() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-127, 128, (3, 16384))
    b = rng.integers(-127, 128, (16384, 4))
    a[0], b[:, 0] = 127, 127
    left, right = (Interval(x := m.astype(np.float64), x, narrow=True) for m in (a, b))
    got = dot_range(left, right, AnyOrder(), accumulator("int32"), Freedom())
    assert got.same
    assert (got.lo == a @ b).all()
    assert got.lo.max() > 2**24
    assert not got.narrow
    wide = dot_range(left, right, AnyOrder(), accumulator("fp32"), Freedom())
    assert (wide.hi - wide.lo).max() > 0
