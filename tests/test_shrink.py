"""The reducer reaches the smallest case of planted faults, and never one that does not fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contract import formats
from contract.errors import CaseError
from contract.rows import Row, expand
from contract.shrink import Shrunk, shrink


def _x(rows: int = 8, n: int = 4096) -> np.ndarray[Any, np.dtype[np.float64]]:
    return expand([Row(seed=seed) for seed in range(rows)], n, "bf16")


def _nonzero(shrunk: Shrunk, name: str = "x") -> int:
    return int(np.count_nonzero(shrunk.case[name]))


def test_one_planted_element_remains_with_a_simple_value() -> None:
    x = _x()
    x[5, 1234] = 97.5

    def fails(case: dict[str, Any]) -> bool:
        return bool((case["x"] > 64).any())

    shrunk = shrink({"x": x, "eps": 1e-6}, fails, row_axis={"x": 0})
    assert shrunk.case["x"].shape == (1, 4096)
    assert shrunk.rows == (5,)
    assert shrunk.case["x"][0, 1234] == 96.0
    assert _nonzero(shrunk) == 1
    assert shrunk.case["eps"] == 1e-6
    assert not shrunk.exhausted
    assert shrunk.calls < 60


def test_softmax_without_the_maximum_shrinks_to_one_element() -> None:
    x = _x()
    x[2, 77] = 90.0

    def fails(case: dict[str, Any]) -> bool:
        with np.errstate(all="ignore"):
            e = np.exp(case["x"].astype(np.float32))
            y = e / e.sum(axis=1, keepdims=True)
        return bool(np.isnan(y).any())

    shrunk = shrink({"x": x}, fails, row_axis={"x": 0})
    assert _nonzero(shrunk) == 1
    assert shrunk.case["x"].shape == (1, 4096)
    assert fails(shrunk.case)
    assert shrunk.calls <= 300


def test_a_pair_of_elements_in_two_operands_remains() -> None:
    x, weight = _x(4, 256), _x(1, 256)[0]

    def fails(case: dict[str, Any]) -> bool:
        return bool((case["x"][:, 200] * case["weight"][200] != 0).any())

    shrunk = shrink({"x": x, "weight": weight}, fails, row_axis={"x": 0, "weight": None})
    assert shrunk.case["weight"].shape == (256,)
    assert (_nonzero(shrunk), _nonzero(shrunk, "weight")) == (1, 1)
    assert shrunk.case["x"][0, 200] == shrunk.case["weight"][200] == 1.0


def test_rows_that_are_needed_together_stay_together() -> None:
    x = _x(16, 8)
    tags = np.arange(16.0)

    def fails(case: dict[str, Any]) -> bool:
        return {3.0, 12.0} <= set(case["tags"])

    shrunk = shrink({"x": x, "tags": tags}, fails, row_axis={"x": 0, "tags": 0}, keep=["tags"])
    assert shrunk.rows == (3, 12)
    assert shrunk.case["tags"].tolist() == [3.0, 12.0]
    assert shrunk.case["x"].tolist() == [[0.0] * 8] * 2


def test_rows_may_lie_along_another_axis() -> None:
    x = _x(4, 64).T.copy()
    x[9, 2] = 50.0
    shrunk = shrink({"x": x}, lambda case: bool((case["x"] > 40).any()), row_axis={"x": 1})
    assert shrunk.case["x"].shape == (64, 1)
    assert shrunk.rows == (2,)
    assert shrunk.case["x"][9, 0] == 48.0


def test_nan_and_negative_zero_stay_where_they_are_the_fault() -> None:
    x = _x(2, 64)
    x[1, 3], x[0, 9] = np.nan, -0.0
    nan = shrink({"x": x}, lambda case: bool(np.isnan(case["x"]).any()), row_axis={"x": 0})
    assert np.flatnonzero(np.isnan(nan.case["x"])).tolist() == [3]
    assert _nonzero(nan) == 1

    def minus(case: dict[str, Any]) -> bool:
        return bool(((case["x"] == 0) & np.signbit(case["x"])).any())

    zero = shrink({"x": x}, minus, row_axis={"x": 0})
    assert np.flatnonzero(np.signbit(zero.case["x"])).tolist() == [9]
    assert _nonzero(zero) == 0


@pytest.mark.parametrize("fmt", ["bf16", "fp32", "e4m3fn", "e2m1", "int8"])
@pytest.mark.parametrize("pattern", ["bits", "subnormal", "huge"])
def test_simpler_values_are_values_of_the_format(fmt: str, pattern: str) -> None:
    x = expand([Row(pattern, seed=4)], 32, fmt)
    refused: list[ValueError] = []

    def fails(case: dict[str, Any]) -> bool:
        try:
            formats.encode(case["x"], fmt)
        except ValueError as error:
            refused.append(error)
        return int(np.count_nonzero(case["x"])) > 2

    shrunk = shrink({"x": x}, fails, row_axis={"x": 0})
    assert shrunk.calls > 5
    assert refused == []


def test_the_budget_is_kept_and_said_to_be_spent() -> None:
    calls = 0

    def fails(case: dict[str, Any]) -> bool:
        nonlocal calls
        calls += 1
        return bool(np.count_nonzero(case["x"]) > 2000)

    shrunk = shrink({"x": _x(4)}, fails, row_axis={"x": 0}, budget=50)
    assert calls == shrunk.calls <= 50
    assert shrunk.exhausted
    assert np.count_nonzero(shrunk.case["x"]) > 2000


def test_a_raising_predicate_does_not_fail() -> None:
    x = _x(2, 64)
    x[0, 7] = 99.0

    def fails(case: dict[str, Any]) -> bool:
        if not case["x"].any(axis=1).all() or len(case["x"]) < 2:
            raise ValueError("an empty row")
        return bool((case["x"] > 64).any())

    shrunk = shrink({"x": x}, fails, row_axis={"x": 0})
    assert shrunk.case["x"].shape == (2, 64)
    assert _nonzero(shrunk) == 2
    assert fails(shrunk.case)


def test_a_predicate_that_writes_into_its_operands_changes_nothing() -> None:
    x = _x(3, 64)
    before = x.copy()

    def fails(case: dict[str, Any]) -> bool:
        failed = bool((case["x"] < -1).any())
        case["x"][...] = np.nan
        return failed

    shrunk = shrink({"x": x}, fails, row_axis={"x": 0})
    assert np.array_equal(x, before)
    assert _nonzero(shrunk) == 1
    assert not np.isnan(shrunk.case["x"]).any()


def test_a_case_that_does_not_fail_is_refused() -> None:
    with pytest.raises(CaseError, match="x: the case does not fail"):
        shrink({"x": _x(1, 8)}, lambda case: False, row_axis={"x": 0})
    with pytest.raises(CaseError, match=r"\{'x': 2, 'y': 3\}"):
        shrink({"x": _x(2, 8), "y": _x(3, 8)}, lambda case: True, row_axis={"x": 0, "y": 0})
