"""Measures of two outputs: literal values, what is red, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from contract.pipelines import compare as module
from contract.pipelines.compare import ComparisonError, compare, compare_logits, top_margin


def test_equal_outputs_have_the_best_of_every_measure() -> None:
    x = torch.tensor([[3.0, 4.0], [1.0, -2.0]], dtype=torch.bfloat16)
    found = compare(x.clone(), x)
    assert (found.cosine, found.worst_cosine, found.gain) == (1.0, 1.0, 1.0)
    assert (found.worst_error, found.max_error, found.nonfinite) == (0.0, 0.0, 0)
    assert (found.equal_bits, found.equal_values) == (100.0, 100.0)
    # of 3, 4, 1, -2: mean 1.5, squares 2.25 + 6.25 + 0.25 + 12.25
    assert found.spread == math.sqrt(21.0 / 4.0)
    assert (found.nearer_previous, found.nearer_next) == (0, 0)


def test_measures_of_a_small_case_by_hand() -> None:
    expected = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 5.0]])
    actual = np.array([[6.0, 8.0], [0.0, 1.0], [0.0, 5.0]])
    found = compare(actual, expected)
    assert found.cosine == pytest.approx(2 / 3, abs=1e-15)
    assert (found.worst_cosine, found.worst_cosine_row) == (0.0, 1)
    # (18 + 32 + 0 + 25) / (25 + 1 + 25)
    assert found.gain == 75 / 51
    # |(1, -1)| / 1 is more than |(3, 4)| / 5
    assert (found.worst_error, found.worst_error_row) == (math.sqrt(2.0), 1)
    assert (found.max_error, found.max_error_at) == (4.0, (0, 1))
    assert found.equal_values == pytest.approx(100 * 2 / 6)


def test_a_gain_is_seen_where_the_cosine_is_blind() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8))
    found = compare(1.25 * x, x)
    assert found.worst_cosine == pytest.approx(1.0, abs=1e-15)
    assert found.gain == pytest.approx(1.25)
    assert found.worst_error == pytest.approx(0.25)


def test_bits_and_values_differ_at_the_sign_of_zero() -> None:
    found = compare(torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.0, 1.0]]))
    assert (found.equal_bits, found.equal_values) == (50.0, 100.0)
    assert compare(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bfloat16)).equal_bits is None


def test_rows_of_zeros() -> None:
    zeros = np.zeros((2, 3))
    found = compare(zeros, np.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
    assert (found.worst_cosine, found.cosine, found.worst_error) == (0.0, 0.5, 1.0)
    assert compare(np.ones((1, 3)), zeros[:1]).worst_error == math.inf
    # an expected output of zeros is passed by a zero output, so its gain is nothing
    assert math.isnan(compare(zeros, zeros).gain)
    # squares of these are zero, they are not: no cosine rather than a good one
    assert math.isnan(compare(np.full((1, 2), -1e-200), np.full((1, 2), 1e-200)).cosine)
    # the square of these squares is
    assert math.isnan(compare([[1e-120, 0.0]], [[1e-120, 1e-120]]).cosine)
    assert compare([[1e-45, 0.0]], [[1e-45, 1e-45]]).cosine == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_every_measure_of_it_nan(bad: float) -> None:
    x = np.arange(1.0, 13.0).reshape(3, 4)
    y = x.copy()
    y[1, 2] = bad
    for actual, expected in ((y, x), (x, y), (y, y)):
        found = compare_logits(actual, expected)
        assert found.logits is not None
        assert found.nonfinite == 1
        assert all(math.isnan(v) for v in (found.cosine, found.worst_cosine))
        assert found.worst_cosine_row == 1
        assert found.gain != 1.0
        assert not found.worst_error <= 1e300
        assert not found.max_error <= 1e300
        assert all(math.isnan(v) for v in (found.logits.pearson, found.logits.top5))
        assert math.isnan(found.logits.kl)
        assert [d.position for d in found.logits.disagreements] == [1]
        assert math.isnan(found.logits.widest)
        text = json.dumps(found.to_json(), allow_nan=False)
        assert json.loads(text)["cosine"] == "nan"
        assert "1 NaN or infinite" in found.line()


def test_logits_by_hand() -> None:
    expected = torch.tensor([[0.0, math.log(3.0), -8.0], [2.0, 1.5, 0.0]])
    actual = torch.tensor([[math.log(3.0), 0.0, -8.0], [2.0, 1.5, 0.0]])
    found = compare_logits(actual, expected).logits
    assert found is not None
    assert found.top1 == 0.5
    (lost,) = found.disagreements
    assert (lost.position, lost.actual, lost.expected) == (0, 0, 1)
    assert lost.margin == pytest.approx(math.log(3.0), abs=1e-6)
    assert found.widest == lost.margin
    # probabilities 1/4, 3/4 exchanged, but for e^-8: (3/4 - 1/4) log 3
    assert found.worst_kl == pytest.approx(math.log(3.0) / 2, abs=1e-3)
    assert found.kl == pytest.approx(found.worst_kl / 2)
    assert found.worst_kl_position == 0
    assert found.worst_pearson_position == 0
    # all three are among the top five
    assert found.top5 == 1.0


def test_kl_is_of_the_expected_against_the_actual() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.8, 0.1, 0.1])
    found = compare_logits(np.log(q)[None], np.log(p)[None]).logits
    assert found is not None
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum()))
    # a common shift of the logits is none of the softmax
    shifted = compare_logits(np.log(p)[None] + 1000.0, np.log(p)[None]).logits
    assert shifted is not None
    assert shifted.kl == pytest.approx(0.0, abs=1e-12)
    assert shifted.pearson == pytest.approx(1.0)


def test_ties_go_to_the_lowest_index() -> None:
    expected = np.array([[1.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    later = np.array([[1.0, 2.0, 2.0 + 1e-9, 0.0, 0.0, 0.0, 0.0, 0.1]])
    found = compare_logits(later, expected).logits
    assert found is not None
    assert [(d.actual, d.expected, d.margin) for d in found.disagreements] == [(2, 1, 0.0)]
    # the expected five are 0 1 2 3 4, the actual ones 0 1 2 3 7
    assert found.top5 == 0.8
    assert compare_logits(expected, expected).logits.top5 == 1.0  # type: ignore[union-attr]


def test_equal_logits_have_no_correlation() -> None:
    found = compare_logits(np.full((1, 4), 0.1), np.array([[1.0, 2.0, 3.0, 4.0]])).logits
    assert found is not None
    assert math.isnan(found.pearson)


def test_a_shifted_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(7, 4))
    for block in (module._BLOCK, 4, 12):
        monkeypatch.setattr(module, "_BLOCK", block)
        shifted = compare(np.concatenate([x[:1], x[:-1]]), x)
        assert shifted.nearer_previous == 6
        ahead = compare(np.concatenate([x[1:], x[-1:]]), x)
        assert ahead.nearer_next == 6
        assert "6 rows nearer to the next one" in ahead.line()
    one = compare(x[:1], x[:1])
    assert (one.nearer_previous, one.nearer_next) == (None, None)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 9, 8)).astype(np.float32)
    whole = compare_logits(x, y).to_json()
    monkeypatch.setattr(module, "_BLOCK", 16)
    assert compare_logits(x, y).to_json() == whole
    assert whole["spread"] == pytest.approx(float(y.astype(np.float64).std()), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.int8, torch.bool])
def test_every_format_is_read(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 0.0, 1.0]]).to(dtype)
    found = compare(x, x)
    assert (found.cosine, found.equal_bits) == (1.0, 100.0)


def test_axes_before_the_last_are_rows() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    found = compare(x.transpose(0, 1), x.transpose(0, 1).contiguous())
    assert (found.shape, found.equal_bits) == ((3, 2, 4), 100.0)
    assert compare([[1.0, 2.0]], [[1.0, 2.0]]).cosine == 1.0
    assert "output 3x2x4: cosine 1.000000 (worst 1.000000, row 0)" in found.line()


@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), r"\(2, 3\), expected has \(3, 2\)"),
        # no broadcasting
        (np.ones((1, 3)), np.ones((2, 3)), r"compare outputs of one shape"),
        (np.ones((0, 3)), np.ones((0, 3)), "nothing to compare"),
        (np.float64(1.0), np.float64(1.0), "nothing to compare"),
        (np.ones((2, 3)) * 1j, np.ones((2, 3)), "actual has dtype complex128"),
        (torch.ones(2, 3), torch.ones(2, 3) * 1j, "expected has dtype complex64"),
        (np.array([["a"]]), np.array([["a"]]), "give real numbers"),
        (np.array([[None]]), np.array([[None]]), "give real numbers"),
        (np.zeros(1, [("x", "f4")]), np.zeros(1, [("x", "f4")]), "give real numbers"),
    ],
)
def test_what_cannot_be_compared_is_refused(actual: Any, expected: Any, said: str) -> None:
    with pytest.raises(ComparisonError, match=said):
        compare(actual, expected)


def test_logits_of_one_token_are_refused() -> None:
    with pytest.raises(ComparisonError, match="two or more"):
        compare_logits(np.ones((2, 1)), np.ones((2, 1)))


@pytest.mark.parametrize(
    ("logits", "margin"),
    [
        ([1.0, 4.0, 3.5], 0.5),
        ([4.0, 4.0], 0.0),
        ([4.0, -math.inf], math.inf),
        ([-math.inf, -math.inf], math.nan),
        ([1.0, math.nan, 0.0], math.nan),
        ([1.0, math.inf, 0.0], math.nan),
        ([math.inf, math.inf], math.nan),
    ],
)
def test_margins(logits: list[float], margin: float) -> None:
    for x in (torch.tensor(logits), torch.tensor([logits], dtype=torch.bfloat16)):
        assert top_margin(x) == pytest.approx(margin, nan_ok=True)
    with pytest.raises(ComparisonError, match="one row"):
        top_margin(torch.ones(2, 3))
