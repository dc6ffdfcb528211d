"""`contract explain` replays a failure and names the fault that reproduces its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sampling import SAMPLED

from contract import autocontrols, diagnose, explain, formats, gates, patterns, registry, suites
from contract.case import Kernel, find, kernels_of, make_case
from contract.checks import collect_checks
from contract.cli import main
from contract.config import RunOptions, read_config
from contract.interval import Array
from contract.judge import PLAIN, Bench, Failure, Subject
from contract.judge_process import Judge, settle
from contract.ranges import OutputRange
from contract.readings.base import Change

#: In CI every so manieth kernel; all of them in the nightly run.
SAMPLE = 37
#: Hand-written faults that are a point, an option or a parameter, and what is to be said of them; see the file.
HAND_WRITTEN = Path(__file__).with_name("data") / "explained.json"


@pytest.fixture(autouse=True)
def catalogue() -> None:
    suites.load(read_config())


def every_kernel() -> list[Kernel]:
    return [kernel for contract in registry.contracts().values() for kernel in kernels_of(contract)]


def unnamed(kernels: list[Kernel]) -> tuple[int, list[str]]:
    """How many automatic controls were refused, and those whose own change is not among the causes."""
    count, found = 0, []
    for kernel in kernels:
        bench = Bench(kernel, "quick", 0)
        for auto in autocontrols.automatic(kernel):
            if (auto.colour, auto.kind) != ("red", "automatic"):
                continue
            failure = refused(kernel, bench, f"red.{auto.name}")
            _, masks = diagnose.ranges_and_refusals(
                kernel, failure.case, failure.outputs, failure.options, {}
            )
            causes, _ = explain.causes_of(kernel, failure, {}, masks)
            count += 1
            if planted(kernel, auto) not in causes:
                found.append(f"{kernel.id}/red.{auto.name}: {causes}")
    return count, found


def refused(kernel: Kernel, bench: Bench, name: str) -> Failure:
    target = {"kind": "auto", "name": name, "profile": kernel.profile.name, "module": ""}
    subject = Subject(kernel, target, None)
    for gate in autocontrols.ANY_GATE:
        tally = gates.run(gate, bench, subject)
        if tally.failure is not None:
            return tally.failure
    raise AssertionError(f"{kernel.id}/{name} is green")


def planted(kernel: Kernel, auto: autocontrols.Auto) -> str:
    if auto.name in autocontrols.changes(kernel):
        return diagnose.change_words(auto.name)
    kind = "option" if auto.about in kernel.contract.options else "parameter"
    return f"{kind} {auto.name}"


def test_fault_of_automatic_controls_is_named() -> None:
    count, found = unnamed(every_kernel()[::SAMPLE])
    assert count > 10
    assert found == []


def test_fault_whose_outputs_have_no_range_is_named_by_its_bits() -> None:
    # codes that nothing rounds are stored somehow, and in no range of the code's format
    count, found = unnamed([find("gptq_block64", "each_update")])
    assert count >= 4
    assert found == []


@pytest.mark.slow
def test_fault_of_every_automatic_control_is_named() -> None:
    # other kernels than those above
    count, found = unnamed(every_kernel()[1::SAMPLE] if SAMPLED else every_kernel())
    assert count > (10 if SAMPLED else 500)
    assert found == []


@pytest.mark.slow
def test_hand_written_faults_that_are_a_point_or_an_option_are_named() -> None:
    settle()
    loaded = suites.load(read_config())
    options = RunOptions(effort="quick", suites=loaded.payload())
    process = Judge({**vars(options), "store_root": None}, lambda message: None)
    expected = json.loads(HAND_WRITTEN.read_text())["controls"]
    checks = {check.id: check for check in collect_checks(automatic=False)}
    assert set(expected) <= set(checks)
    wrong = []
    try:
        for name, cause in list(expected.items())[:: 10 if SAMPLED else 1]:
            check = checks[name]
            kernel = find(check.spec["name"], check.spec["profile"], check.spec["parameters"])
            bench = process.bench(kernel, {"kernel": dict(check.spec)})
            subject, missing = process.subject(kernel, check.as_json())
            assert not missing, name
            tallies = [gates.run(gate, bench, subject) for gate in check.gates]
            failure = next(t.failure for t in tallies if t.failure is not None)
            _, masks = diagnose.ranges_and_refusals(
                kernel, failure.case, failure.outputs, failure.options, subject.depths
            )
            found, _ = explain.causes_of(kernel, failure, subject.depths, masks)
            if cause not in found:
                wrong.append(f"{name}: {cause!r} is not in {found}")
    finally:
        process.close()
    assert len(wrong) <= 0.1 * len(expected), "\n".join(wrong)


def test_command_prints_points_pattern_and_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rms_norm/two_step/red.drop-normed"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("rms_norm/two_step/red.drop-normed: refused by shapes: ")
    assert "  normed: " in said
    assert " in bf16, allowed 0x" in said
    assert "all 2 indices of rows" in said
    assert "1 ulp too high" in said
    assert said.endswith("reproduces all observed bits: dropped point `normed`\n")


def test_what_is_green_has_nothing_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cast,to=fp16/inf/torch/exact", "--effort", "quick"]) == 5
    assert "green: there is nothing to explain" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "words"),
    [(["rms_norm/oncce/torch"], "no check"), (["rms_norm/once/reference"], "names no check of an")],
)
def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], names: list[str], words: str
) -> None:
    assert main(["explain", *names]) == 4
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert words in error[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("null-zeros", "every output is 0.0"),
        ("null-copy", "it holds the values of operand x"),
        ("null-previous-row", "each output is the right one of the index before of rows"),
        ("null-neighbour", "each output is the right one of the index before of d"),
        ("null-one-ulp-beyond", "out: 1 of 8 outputs are refused"),
        ("truncate-out", "one-sided: every refused output is too close to zero"),
    ],
)
def test_pattern_of_a_whole_answer(name: str, words: str) -> None:
    kernel = find("rms_norm", "once")
    values = {
        "x": np.array([[1.5, -2.0, 3.0, 0.5], [-1.0, 0.75, 2.0, 5.0]]),
        "weight": np.arange(4.0) + 1,
    }
    case = make_case(kernel, {"rows": 2, "d": 4}, values)
    outputs = autocontrols.run(kernel, f"red.{name}", case, 0)
    ranges, masks = diagnose.ranges_and_refusals(kernel, case, outputs, {}, {})
    assert any(words in line for line in patterns.lines(kernel, case, outputs, ranges, masks))


def test_joint_faults_are_found_where_no_single_change_is_one() -> None:
    kernel = find("geglu", "each_op")
    case = Bench(kernel, "quick", 0).cases("exact")[0]
    change = Change(drop=frozenset({"arg", "gelu"}))
    outputs = autocontrols.nominal(kernel, case, change=change)
    options = Bench(kernel, "quick", 0).options[0]
    failure = Failure("exact", case, PLAIN, outputs, options)
    _, masks = diagnose.ranges_and_refusals(kernel, case, outputs, options, {})
    assert (
        "`arg` not rounded and `gelu` not rounded"
        in explain.causes_of(kernel, failure, {}, masks)[0]
    )


def mask(size: int, *where: int) -> Array:
    found = np.zeros((1, size), bool)
    found[0, list(where)] = True
    return found


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (mask(64, *range(64)), "all 64 indices of d"),
        (mask(64, *range(3, 64, 4)), "d = 3 modulo 4, and no other"),
        (mask(128, 31, 63, 95, 127), "d = 31 modulo 32, and no other"),
        (mask(64, 5), "1 of 64 indices of d: 5"),
        (mask(64, *range(32, 64)), "d = 32 to 63 of 0 to 63"),
        (mask(1, 0), "the one index of d"),
    ],
)
def test_places_are_all_a_few_a_stretch_or_a_lane(columns: Array, said: str) -> None:
    assert patterns.places(columns, 1, "d") == said


def test_sides_are_told_from_a_mixture() -> None:
    fmt = formats.get("bf16")
    right = formats.encode(np.array([1.0, -1.0, 2.0, -2.0]), fmt)
    codes = formats.ordered(right, fmt).astype(np.int16)
    out = OutputRange(fmt, codes, codes, None)
    every = np.ones(4, bool)

    def said(*values: float) -> list[str]:
        return patterns.sides(out, formats.encode(np.array(values), fmt), every)

    assert said(0.5, -0.5, 1.5, -1.5)[0].endswith("every refused output is too close to zero")
    below = formats.from_ordered(formats.ordered(right, fmt) - np.sign([1, -1, 1, -1]), fmt)
    assert "too close to zero, as truncation leaves it" in patterns.sides(out, below, every)[0]
    assert "too far from zero" in said(1.5, -1.5, 3.0, -3.0)[0]
    assert said(1.5, -0.5, 3.0, -1.5)[0] == "one-sided: every refused output is too high"
    assert said(1.5, -0.5, 1.5, -3.0)[0] == "both sides: 50 % of the refused are too high"
