"""The same report gives the same SUMMARY, exit code, JSON, JUnit and lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contract import junit
from contract.report import (
    closing_lines,
    code_lines,
    counts,
    counts_line,
    exit_code,
    json_text,
    kernels,
    outputs_line,
    summary,
    summary_line,
    to_json,
    write_json,
)
from contract.results import CheckResult, Report


def result(name: str, outcome: str = "pass", **more: object) -> CheckResult:
    kernel, profile, *rest = name.split("/")
    facts: dict[str, object] = {}
    if len(rest) == 2:
        facts = {"implementation": rest[0], "gate": rest[1]}
    elif rest != ["reference"]:
        facts = {"control": rest[0]}
    facts |= more
    return CheckResult(name, kernel, profile, outcome, **facts)  # type: ignore[arg-type]


def good_report() -> Report:
    return Report(
        checks=[
            result("a/once/reference", outputs_compared=100, power={"out": 1.0, "mid": 0.25}),
            result("a/once/torch/stress", outputs_compared=300, one_value_share=0.5),
            result("a/once/torch/limits", "not_applicable", detail="no torch in it"),
            result("a/once/red.zeros", "red_as_planted", outputs_compared=5, from_receipt=True),
            result(
                "a/once/green.fma", "green_as_planted", outputs_compared=100, one_value_share=1.0
            ),
            result("b,gain=1+w/once/reference", outputs_compared=1),
            result("b,gain=1+w/once/triton/exact", "not_run", detail="needs triton"),
        ],
        environment={"torch": "2.13.0"},
        seconds=1.23456,
    )


RED = result(
    "a/once/torch/exact",
    "fail",
    detail="row 7, out[3, 41]: got 0x3f81, allowed 0x3f80 only\nequals the contract without `mid`",
)


def test_the_summary_has_the_form_of_the_design() -> None:
    assert summary_line(good_report()) == (
        "SUMMARY 2 kernels: 1 pass, 0 fail, 1 not run; 2 controls: 1 red as planted,"
        " 1 green as planted, 0 missed; 0 limit problems (1 check from receipts)"
    )
    assert counts_line(good_report()) == "5 passed, 0 failed, 1 skipped"
    assert outputs_line(good_report()) == (
        "compared 506 outputs; 62.50 % of them have one allowed value"
    )
    assert exit_code(good_report()) == 0


def test_the_summary_of_nothing_claims_nothing() -> None:
    assert summary_line(Report()) == (
        "SUMMARY 0 kernels: 0 pass, 0 fail, 0 not run; 0 controls: 0 red as planted,"
        " 0 green as planted, 0 missed; 0 limit problems"
    )
    assert outputs_line(Report()) == "compared 0 outputs"
    assert exit_code(Report()) == 5


def test_rare_outcomes_of_controls_appear_when_they_happen() -> None:
    report = Report(
        [
            result("a/once/red.a", "missed"),
            result("a/once/red.b", "red_elsewhere"),
            result("a/once/red.c", "crash"),
            result("a/once/red.d", "timeout"),
            result("a/once/red.e", "not_run"),
        ]
    )
    assert (
        "5 controls: 0 red as planted, 0 green as planted, 1 missed, 1 red elsewhere,"
        " 2 crashed, 1 not run;" in summary_line(report)
    )
    assert counts(report) == (0, 4, 1)


@pytest.mark.parametrize(
    "outcome", ["fail", "crash", "timeout", "out_of_memory", "missed", "red_elsewhere"]
)
def test_every_bad_outcome_fails_the_run(outcome: str) -> None:
    report = good_report()
    report.checks.append(result("a/once/torch/bounds", outcome))
    assert exit_code(report) == 1
    assert counts(report)[1] == 1
    assert kernels(report)["a", "once"] == "fail"


def test_a_required_check_that_did_not_run_has_failed() -> None:
    report = good_report()
    report.checks[-1] = replace(report.checks[-1], required=True)
    assert exit_code(report) == 1
    assert counts_line(report) == "5 passed, 1 failed, 0 skipped"
    assert kernels(report)["b,gain=1+w", "once"] == "fail"
    text = "\n".join(closing_lines(report))
    assert "NOT RUN (required) b,gain=1+w/once/triton/exact\n    needs triton\n" in text


def test_a_missed_control_does_not_change_its_kernel_but_the_exit_code() -> None:
    report = good_report()
    report.checks[3] = replace(report.checks[3], outcome="missed")
    assert kernels(report)["a", "once"] == "pass"
    assert exit_code(report) == 1


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([result("a/p/reference")], "not_run"),
        ([result("a/p/torch/stress")], "pass"),
        ([result("a/p/reference", "not_run"), result("a/p/torch/stress")], "not_run"),
        ([result("a/p/reference"), result("a/p/torch/stress", "not_run")], "not_run"),
        ([result("a/p/reference"), result("a/p/torch/limits", "not_applicable")], "not_run"),
        (
            [result("a/p/reference"), result("a/p/x/stress"), result("a/p/y/stress", "not_run")],
            "pass",
        ),
        ([result("a/p/reference", "fail"), result("a/p/torch/stress")], "fail"),
        ([result("a/p/red.x", "red_as_planted")], "not_run"),
    ],
)
def test_a_kernel_passes_only_with_its_reference_and_an_implementation_that_ran(
    checks: list[CheckResult], verdict: str
) -> None:
    assert kernels(Report(checks)) == {("a", "p"): verdict}


def test_problems_limits_and_interruption_reach_the_exit_code() -> None:
    assert exit_code(replace_report(problems=["required 'triton' did not run"])) == 1
    assert exit_code(replace_report(limit_problems=["workspace 9 bytes"])) == 1
    assert exit_code(replace_report(interrupted=True)) == 2
    assert exit_code(replace_report(notes=["an unreadable entry"])) == 0
    assert exit_code(Report([result("b/once/x/exact", "not_run")])) == 5
    assert exit_code(Report([result("b/once/x/exact", "not_applicable")])) == 5


def replace_report(**more: object) -> Report:
    return replace(good_report(), **more)  # type: ignore[arg-type]


def test_a_red_is_printed_in_full_with_its_command() -> None:
    report = good_report()
    report.checks.append(RED)
    lines = list(closing_lines(report))
    place = lines.index("FAIL a/once/torch/exact")
    assert lines[place + 1 : place + 4] == [
        "    row 7, out[3, 41]: got 0x3f81, allowed 0x3f80 only",
        "    equals the contract without `mid`",
        "    reproduce: contract run a/once/torch/exact",
    ]
    assert lines[-2] == summary_line(report)
    assert lines[-1] == "5 passed, 1 failed, 1 skipped"


def test_one_cause_at_several_gates_is_printed_once_and_kept_whole_in_the_json() -> None:
    """Told apart are causes, outcomes and implementations; where it was seen is said of each."""
    why = "CompilationError: num_warps must be a power of 2\n  got 3"
    seen = {"shapes": "rows=4 d=8", "stress": "seed=0 block=0", "exact": "seed=0 set=1"}
    checks = [
        result(
            f"a/once/mine/{gate}",
            "fail",
            detail=f"{why} ({case}, launch configuration-2 (BLOCK=8 num_warps=3))",
        )
        for gate, case in seen.items()
    ]
    other = result("a/once/yours/shapes", "fail", detail=f"{why} (rows=4 d=8, launch plain)")
    crash = result("a/once/mine/bounds", "crash", detail=f"{why} (rows=4 d=8, launch plain)")
    report = Report(checks=[*checks, other, crash])
    lines = list(closing_lines(report))
    assert sum("num_warps must be" in line for line in lines) == 3
    assert (
        "FAIL a/once/mine/stress: the same as a/once/mine/shapes (seed=0 block=0, launch configuration-2 (BLOCK=8 num_warps=3))"
        in lines
    )
    assert [check["detail"] for check in to_json(report)["checks"]] == [
        c.detail for c in report.checks
    ]


def test_reasons_notes_and_problems_are_named() -> None:
    lines = list(closing_lines(replace_report(notes=["N"], problems=["P"], limit_problems=["L"])))
    assert "not run: needs triton: 1 check of triton" in lines
    assert {"note: N", "PROBLEM: P", "limit problem: L"} <= set(lines)
    assert not any(line.startswith("power") for line in lines)


def test_verbose_adds_power_weakest_first_and_quiet_keeps_what_is_bad() -> None:
    verbose = list(closing_lines(good_report(), 1))
    assert "power a/once/reference: mid 25 %, out 100 %" in verbose
    assert "    b,gain=1+w/once/triton/exact" in verbose
    assert "n/a: no torch in it: 1 check of torch" in verbose
    report = replace_report(notes=["N"], problems=["P"])
    report.checks.append(RED)
    quiet = list(closing_lines(report, -1))
    assert "note: N" not in quiet
    assert "PROBLEM: P" in quiet
    assert "FAIL a/once/torch/exact" in quiet


def test_moved_machine_code_is_named_and_all_other_code_in_one_line() -> None:
    entry = json.dumps({"architectures": {"sm_80": {}, "gfx942": {}}})
    same = result("a/once/triton/limits", detail="k: at most 8 registers", recorded=(entry,))
    moved = replace(same, id="b/once/triton/limits", detail="k: ...\nmoved: k on sm_80: code")
    red = replace(moved, outcome="fail")
    assert code_lines(replace_report(checks=[same, replace(same, id="c"), red])) == [
        "machine code: no kernel's code changed on 2 architectures (2 implementations as recorded)"
    ]
    assert code_lines(replace_report(checks=[same, moved])) == [
        "machine code of b/once/triton/limits moved: k on sm_80: code",
        "machine code: no other kernel's code changed on 2 architectures (1 implementation as recorded)",
    ]
    assert code_lines(good_report()) == []


def test_json_has_the_schema_of_the_design() -> None:
    report = good_report()
    report.checks.append(RED)
    whole = to_json(report)
    assert set(whole) == {"schema", "summary", "environment", "checks"}
    assert whole["schema"] == 1
    assert whole["environment"] == {"torch": "2.13.0", "effort": "default", "seed": 0}
    assert whole["summary"] == {
        "kernels": 2,
        "pass": 0,
        "fail": 1,
        "not_run": 1,
        "controls": {
            "red_as_planted": 1,
            "green_as_planted": 1,
            "missed": 0,
            "red_elsewhere": 0,
            "crashed": 0,
        },
        "limit_problems": 0,
        "outputs_compared": 506,
        "from_receipts": 1,
        "seconds": 1.235,
    }
    assert summary(report) == whole["summary"]
    assert whole["checks"][-1] == {
        "id": "a/once/torch/exact",
        "kernel": "a",
        "profile": "once",
        "implementation": "torch",
        "engine": "host",
        "gate": "exact",
        "control": None,
        "outcome": "fail",
        "outputs_compared": 0,
        "one_value_share": None,
        "widest_ulp": None,
        "detail": RED.detail,
        "reproduce": "contract run a/once/torch/exact",
        "from_receipt": False,
        "seconds": 0.0,
    }


def test_json_says_captured_where_rows_were() -> None:
    report = good_report()
    report.checks.append(replace(RED, captured=3))
    assert [check.get("captured") for check in to_json(report)["checks"]][-2:] == [None, 3]


def test_json_says_what_only_some_checks_have() -> None:
    report = good_report()
    entry = {
        "function": "f",
        "configuration": [0, 1],
        "place": 0,
        "architectures": {"sm_80": {"resources": {"registers": 32}, "code": "0a"}},
    }
    report.checks[1] = replace(
        report.checks[1],
        bits={"inputs": "01", "outputs": "02"},
        measured={"workspace_bytes": 4},
        recorded=(json.dumps(entry),),
        required=True,
    )
    reference, check, *others = to_json(report)["checks"]
    assert reference["power"] == {"out": 1.0, "mid": 0.25}
    assert check["bits"] == {"inputs": "01", "outputs": "02"}
    assert check["resources"] == {"workspace_bytes": 4}
    assert check["functions"] == [{"function": "f", "architectures": {"sm_80": {"registers": 32}}}]
    assert check["required"]
    for other in others:
        assert not {"bits", "resources", "functions", "required", "power"} & set(other)


def test_json_has_what_is_wrong_with_the_run_as_a_whole() -> None:
    report = replace_report(problems=["P"], limit_problems=["L"], interrupted=True)
    assert to_json(report)["problems"] == [
        {"kind": "problem", "text": "P"},
        {"kind": "limit problem", "text": "L"},
        {"kind": "interrupted", "text": "interrupted after 7 checks"},
    ]
    assert "problems" not in to_json(good_report())


def test_json_text_is_sorted_finite_and_the_same_but_for_times() -> None:
    report = good_report()
    report.checks.append(replace(RED, widest_ulp=float("inf"), seconds=1.0))
    text = json_text(report)
    report.checks[-1] = replace(report.checks[-1], seconds=2.0)
    assert json_text(report) == text.replace('"seconds": 1.0', '"seconds": 2.0') != text
    assert text.endswith("}\n")
    assert '\n "checks": [\n' in text
    assert json.loads(text, parse_constant=pytest.fail)["checks"][-1]["widest_ulp"] is None
    keys = [line.split('"')[1] for line in text.splitlines() if line.startswith(' "')]
    assert keys == ["checks", "environment", "schema", "summary"]


def test_reports_on_disk_hold_the_text(tmp_path: Path) -> None:
    write_json(good_report(), tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == json_text(good_report())
    junit.write_junit(good_report(), tmp_path / "a.xml")
    assert (tmp_path / "a.xml").read_text(encoding="utf-8") == junit.to_xml(good_report())


def test_junit_counts_as_the_last_line_does() -> None:
    report = good_report()
    report.checks.append(replace(RED, detail="bits \x1b[31m\x00\ud800 and more\nsecond"))
    suite = ElementTree.fromstring(junit.to_xml(report))[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = {f"{case.get('classname')}/{case.get('name')}": case for case in suite}
    assert len(cases) == 7
    failure = cases["a/once/torch/exact"].find("failure")
    assert failure is not None
    # Control characters and lone surrogates cannot stand in XML.
    assert failure.get("message") == "fail: bits [31m and more"
    assert "reproduce: contract run a/once/torch/exact" in (failure.text or "")
    skipped = cases["b,gain=1+w/once/triton/exact"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "needs triton"


def test_junit_is_red_when_only_the_run_as_a_whole_is() -> None:
    report = replace_report(problems=["required 'triton' did not run"], interrupted=True)
    suite = ElementTree.fromstring(junit.to_xml(report))[0]
    assert suite.get("failures") == "2"
    messages = [failure.get("message") for failure in suite.iter("failure")]
    assert messages == ["required 'triton' did not run", "interrupted after 7 checks"]
