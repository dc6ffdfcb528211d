"""Gates joined by `and`, and controls that must turn them red."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from contract.errors import CaseError, DeclarationError
from contract.pipelines.compare import Comparison, compare, compare_logits
from contract.pipelines.gates import (
    Gate,
    GateResult,
    Limit,
    NegativeControl,
    Verdict,
    at_least,
    at_most,
    exactly,
    flip_bit,
    judge,
    previous_position,
    skip_call,
    swap_layers,
    verdict_of,
    zero_output,
)

EXPECTED = torch.randn(6, 16, generator=torch.Generator().manual_seed(3))


def measure(output: Any) -> Comparison:
    return compare_logits(output, EXPECTED)


CLOSE = Gate(
    "logits", measure, [at_least("cosine", 0.999), at_most("logits.kl", 1e-3), exactly("nearer_previous", 0)]
)  # fmt: skip
SIZE = Gate("gain", measure, [Limit("gain", 0.99, 1.01)])


def test_a_right_output_is_green_and_its_controls_are_red() -> None:
    report = judge(
        [CLOSE, SIZE],
        EXPECTED + 1e-4,
        [
            NegativeControl("zero output", zero_output),
            NegativeControl("previous position", previous_position),
            NegativeControl("scaled", lambda x: 1.02 * x),
        ],
        name="tiny",
    )
    assert report.verdict.green
    assert [c.outcome for c in report.controls] == ["red"] * 3
    assert report.controls[2].seen_by == ("gain",)
    assert report.exit_code == 0
    assert report.lines()[0] == "tiny: green, 2 of 2 gates green, 3 controls: 3 red"
    assert report.lines()[-1] == "  control red      scaled: seen by gain"
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["exit_code"] == 0


def test_one_red_gate_makes_the_verdict_red_and_controls_prove_nothing() -> None:
    report = judge([CLOSE, SIZE], 1.5 * EXPECTED, [NegativeControl("zero output", zero_output)])
    assert [gate.outcome for gate in report.verdict.gates] == ["red", "red"]
    assert [c.outcome for c in report.controls] == ["not run"]
    assert report.exit_code == 1
    assert report.lines()[0].startswith("pipeline: RED, 0 of 2 gates green")
    assert "gate RED" not in report.lines()[1]
    assert "gain >= 0.99 <= 1.01 (is 1.5)" in report.lines()[2]


def test_nothing_compared_is_red() -> None:
    assert not Verdict(()).green
    assert judge([], EXPECTED).exit_code == 1
    one = Verdict((GateResult("a", "green", "", {}), GateResult("b", "error", "", {})))
    assert not one.green
    assert one.red == ()
    with pytest.raises(DeclarationError, match="'none' has no limit"):
        Gate("none", measure, [])


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_keeps_no_limit(value: float | None) -> None:
    for limit in (at_least("x", -1e300), at_most("x", 1e300)):
        (result,) = verdict_of([Gate("g", lambda out: {"x": out}, [limit])], value).gates
        assert result.outcome == "red"


def test_limits_hold_at_their_ends_and_not_beyond() -> None:
    gate = Gate("g", lambda out: {"x": out}, [Limit("x", 1.0, 2.0)])
    outcomes = [verdict_of([gate], x).gates[0].outcome for x in (0.99, 1, np.float32(2), 2.01)]
    assert outcomes == ["red", "green", "green", "red"]
    same = Gate("g", lambda out: {"same": out}, [exactly("same", True)])
    assert [verdict_of([same], x).green for x in (True, np.bool_(True), False)] == [
        True,
        True,
        False,
    ]
    for bad in ({}, {"least": float("nan")}, {"least": 2.0, "most": 1.0}):
        with pytest.raises(DeclarationError, match="limit of 'x'"):
            Limit("x", **bad)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (lambda out: out["absent"], "IndexError|TypeError|KeyError"),
        (lambda out: {"y": 1}, "KeyError: 'x'"),
        (lambda out: {"x": "1"}, "CaseError: x is '1'; a limit is of a number"),
        (lambda out: compare(out[:1], EXPECTED), "ComparisonError: output: actual has shape"),
    ],
)  # fmt: skip
def test_a_gate_that_does_not_run_is_no_pass_and_no_catch(measured: Any, said: str) -> None:
    broken = Gate("broken", measured, [at_least("x", 0.0)])
    (result,) = verdict_of([broken], EXPECTED).gates
    assert result.outcome == "error"
    assert any(part in result.detail for part in said.split("|"))

    def only_right(out: Any) -> Any:
        return {"x": 1} if out is EXPECTED else measured(out)

    gate = Gate("broken", only_right, [at_least("x", 0.0)])
    report = judge([gate], EXPECTED, [NegativeControl("zero", zero_output)])
    assert [c.outcome for c in report.controls] == ["error"]
    assert report.exit_code == 1


def test_a_control_that_stays_green_is_missed_unless_declared_blind() -> None:
    controls = [
        NegativeControl("same", lambda x: x.clone()),
        NegativeControl("near", lambda x: x + 1e-5),
        NegativeControl("k bias", lambda x: x.clone(), blind="a softmax is blind to a shift"),
        NegativeControl("zero", zero_output, blind="wrongly declared"),
        NegativeControl("raises", lambda x: x[None] @ x[None]),
    ]
    report = judge([CLOSE], EXPECTED, controls)
    assert [c.outcome for c in report.controls] == ["missed", "missed", "blind", "red", "error"]
    assert report.controls[0].detail.startswith("no measure moved")
    assert report.controls[1].detail.startswith("every measure kept its limits")
    assert report.controls[2].detail == "a softmax is blind to a shift"
    assert "which it is not" in report.controls[3].detail
    assert report.exit_code == 1
    assert judge([CLOSE], EXPECTED, controls[2:4]).exit_code == 0
    assert judge([CLOSE], EXPECTED, controls[:1]).exit_code == 1


def test_a_control_that_spoils_the_output_it_is_given_is_told() -> None:
    output = EXPECTED.clone()
    report = judge([CLOSE], output, [NegativeControl("in place", lambda x: x.zero_())])
    assert report.exit_code == 1
    assert "a control changed the output" in report.verdict.gates[-1].detail


def test_names_are_unique() -> None:
    with pytest.raises(DeclarationError, match="two gates are named 'logits'"):
        judge([CLOSE, CLOSE], EXPECTED)
    zero = NegativeControl("zero", zero_output)
    with pytest.raises(DeclarationError, match="two controls are named 'zero'"):
        judge([CLOSE], EXPECTED, [zero, zero])


def test_zero_output_of_every_container() -> None:
    found = zero_output({"a": torch.ones(2), "b": (np.ones(3), [torch.ones(1)])})
    assert found["a"].tolist() == [0.0, 0.0]
    assert found["b"][0].tolist() == [0.0] * 3
    assert found["b"][1][0].tolist() == [0.0]
    with pytest.raises(CaseError, match="zero output of a str"):
        zero_output("text")


def test_previous_position() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    for y in (x, x.numpy()):
        assert previous_position(y).tolist() == [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0]]
    assert previous_position(x[None]).shape == (1, 3, 2)
    for y in (x[:1], x[0]):
        with pytest.raises(CaseError, match="no previous position"):
            previous_position(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int32])
def test_one_bit_of_one_word_is_flipped(dtype: torch.dtype) -> None:
    weights = {"w": torch.arange(6).reshape(2, 3).to(dtype).t(), "v": torch.ones(2)}
    before = weights["w"].clone()
    bits = 8 * before.element_size()
    found = flip_bit(weights, "w", word=3, bit=bits - 1)
    assert torch.equal(weights["w"], before)
    assert found["v"] is weights["v"]
    changed = (found["w"] != before).nonzero().tolist()
    # word 3 in the order of the axes, whatever the strides
    assert changed == [[1, 1]]
    assert torch.equal(flip_bit(found, "w", word=3, bit=bits - 1)["w"], before)
    if dtype.is_floating_point:
        assert found["w"][1, 1] == -4


def test_a_bit_of_an_array_and_what_there_is_not() -> None:
    weights = {"w": np.array([1, 2], np.int16)}
    assert flip_bit(weights, "w", word=1, bit=8)["w"].tolist() == [1, 258]
    assert weights["w"].tolist() == [1, 2]
    for place in ({"word": 2, "bit": 0}, {"word": 0, "bit": 16}, {"word": -1, "bit": 0}):
        with pytest.raises(CaseError, match="2 elements of 16 bits"):
            flip_bit(weights, "w", **place)
    with pytest.raises(CaseError, match="no tensor 'x'"):
        flip_bit(weights, "x", word=0, bit=0)


def test_layers_are_swapped_by_their_pattern() -> None:
    weights = {f"blk.{i}.{n}": torch.full((2,), float(i)) for i in (1, 2, 12) for n in ("q", "k")}
    found = swap_layers(weights, "blk.{}.", 1, 2)
    assert [float(found[n][0]) for n in ("blk.1.q", "blk.2.q", "blk.1.k", "blk.12.k")] == [
        2,
        1,
        2,
        12,
    ]
    assert found["blk.1.q"] is weights["blk.2.q"]
    assert float(weights["blk.1.q"][0]) == 1.0
    for pattern, first, second in (("blk.{}.", 1, 3), ("blk.{}.", 1, 1), ("blk.1.", 1, 2)):
        with pytest.raises(CaseError, match="two layers that there are"):
            swap_layers(weights, pattern, first, second)
    with pytest.raises(CaseError, match="swap layers of one kind"):
        swap_layers({**weights, "blk.2.q": torch.ones(3)}, "blk.{}.", 1, 2)
    with pytest.raises(CaseError, match=r"no tensor 'blk\.1\.extra'"):
        swap_layers({**weights, "blk.2.extra": torch.ones(3)}, "blk.{}.", 1, 2)


def test_one_call_is_skipped() -> None:
    seen: list[int] = []
    kernel = skip_call(lambda x, *, y: seen.append(x + y), 1)
    for x in range(3):
        kernel(x, y=10)
    assert seen == [10, 12]
