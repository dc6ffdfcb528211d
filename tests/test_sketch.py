"""What is drawn of outputs: errors against the value without rounding, in ulps, and the allowed ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from contract import formats
from contract.case import Case, Kernel, find, make_case, take_columns
from contract.config import read_config
from contract.errors import DeclarationError
from contract.plots import Scale, error_bars, errors, scale_of, width_bars
from contract.ranges import case_range
from contract.sketch import CASES, POINTS, REFUSED, Sketch, read
from contract.suites import load


@pytest.fixture
def kernel(project: Path) -> Kernel:
    load(read_config())
    return find("scaled", "two_step")


def case_of(kernel: Kernel, x: float, y: float, rows: int = 2, d: int = 3) -> Case:
    values = {"x": np.full((rows, d), x), "y": np.full((rows, d), y)}
    return make_case(kernel, {"rows": rows, "d": d}, values, {"scale": 1.25})


def looked(kernel: Kernel, case: Case, out: float, times: int = 1, failed: bool = False) -> Sketch:
    found = Sketch()
    bits = formats.encode(np.full((case.shape["rows"], case.shape["d"]), out), formats.get("bf16"))
    for _ in range(times):
        found.add(kernel, case, case_range(kernel, case), {"out": bits}, {}, failed)
    return found


def test_errors_are_in_ulps_of_the_value_without_rounding(kernel: Kernel) -> None:
    # 0.8125 * 1.25 = 1.015625 = 1 + 2^-6 is a bf16 number: no rounding, no error
    exact = looked(kernel, case_of(kernel, 0.8125, 0.0), 1.015625)
    assert exact.points == [(0.8125, 0.0, 0.0, 0.0, False)] * 6
    assert exact.against == "input x"
    # 0.8203125 * 1.25 = 1 + 2^-6 + 2^-7 + 2^-9 lies a quarter ulp (2^-9) above a bf16 number
    rounded = looked(kernel, case_of(kernel, 0.8203125, 0.0), 1.0234375)
    assert rounded.points == [(0.82031, -0.25, -0.25, -0.25, False)] * 6
    assert dict(rounded.errors) == {-1: 6}
    assert dict(rounded.widths)["one value"] == 6
    # one ulp too high
    high = looked(kernel, case_of(kernel, 0.8203125, 0.0), 1.03125)
    assert high.points == [(0.82031, 0.75, -0.25, -0.25, True)] * 6
    assert dict(high.errors) == {3: 6}


def test_it_is_bounded_and_keeps_refused_ones(kernel: Kernel) -> None:
    case = case_of(kernel, 0.8203125, 0.0, rows=40, d=40)
    good = looked(kernel, case, 1.0234375, times=CASES + 3)
    assert len(good.points) == CASES * POINTS
    assert sum(good.errors.values()) == CASES * 1600
    late = looked(kernel, case, 1.03125, times=CASES + 1, failed=True)
    assert len(late.points) == (CASES + 1) * REFUSED


def test_what_is_not_finite_is_counted(kernel: Kernel) -> None:
    found = looked(kernel, case_of(kernel, np.inf, 0.0), np.inf)
    assert found.left_out == 6
    assert json.loads(found.text()) == {"none": "no output is finite"}


def test_a_reference_without_a_meaning_unrounded_has_no_plot(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("contract.sketch.apply_reading", unread)
    found = looked(kernel, case_of(kernel, 1.0, 0.0), 1.25)
    said = "the reference cannot be read without rounding (ZeroDivisionError)"
    assert json.loads(found.text()) == {"none": said}


def test_text_is_read_back(kernel: Kernel) -> None:
    found = looked(kernel, case_of(kernel, 0.8203125, 0.0), 1.03125)
    again = read(found.text())
    assert again is not None
    assert again.text() == found.text()
    assert again.points == found.points


def test_columns_are_taken_where_the_contract_has_some(kernel: Kernel) -> None:
    with pytest.raises(DeclarationError, match="names no column dim"):
        take_columns(kernel, case_of(kernel, 1.0, 0.0), 1)


def test_a_scale_is_linear_or_logarithmic_by_its_values() -> None:
    linear = scale_of([-1.0, 0.0, 3.0], 0.0, 100.0)
    assert (linear.bend, linear(-1.0), linear(3.0), linear(1.0)) == (0.0, 0.0, 100.0, 50.0)
    assert linear.ticks() == [-1.0, 0.0, 1.0, 2.0, 3.0]
    wide = scale_of([-1000.0, 1.0, 1.0, 2.0, 1000.0], 0.0, 100.0)
    assert wide.bend == 1.0
    assert (wide(-1000.0), wide(0.0), wide(1000.0)) == (0.0, 50.0, 100.0)
    assert wide(1.0) == pytest.approx(62.5)
    assert wide(10.0) == pytest.approx(75.0)
    assert set(wide.ticks()) >= {-1000.0, 0.0, 1000.0}
    # equal values, and what lies outside
    assert scale_of([2.0, 2.0], 0.0, 10.0)(2.0) == 5.0
    assert Scale(0.0, 1.0, 0.0, 10.0)(7.0) == 10.0
    for values in ([0.0], [1e-300, 1e300], [5e-324, 1.0], [0.1, 0.2]):
        scale = scale_of(values, 0.0, 1.0)
        assert all(0.0 <= scale(tick) <= 1.0 for tick in scale.ticks())
        assert len(scale.ticks()) <= 12


def test_plots_hold_every_point(kernel: Kernel) -> None:
    found = looked(kernel, case_of(kernel, 0.8203125, 0.0), 1.03125)
    drawn = errors(found)
    assert drawn.count("h0") == 6
    assert "6 outputs, 6 of them refused" in drawn
    assert "0.75 to 1 ulps: 6" in error_bars(found)
    assert "one value: 6" in width_bars(found)
    assert "nan" not in drawn + error_bars(found) + width_bars(found)
