"""Two reports: what was lost or is red fails, what moved inside its range is a note."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.cli import main
from contract.comparison import compare, exit_code, lines
from contract.report import json_text
from contract.report_file import read_report
from contract.results import CheckResult, Report

REFERENCE = CheckResult(
    "a/once/reference", "a", "once", "pass", gate="reference", outputs_compared=9,
    power={"drop-mid": 0.25}, seconds=1.0)  # fmt: skip
STRESS = CheckResult(
    "a/once/torch/stress", "a", "once", "pass", "torch", gate="stress", outputs_compared=100,
    one_value_share=0.5, widest_ulp=1.0, bits={"inputs": "01", "outputs": "02"}, seconds=1.0)  # fmt: skip
LIMITS = CheckResult(
    "a/once/torch/limits", "a", "once", "pass", "torch", gate="limits", outputs_compared=4,
    measured={"threads": 0, "workspace_bytes": 8}, seconds=1.0)  # fmt: skip
RED = CheckResult(
    "a/once/red.zeros", "a", "once", "red_as_planted", control="red.zeros", gate="shapes",
    outputs_compared=5, seconds=1.0)  # fmt: skip
ABSENT = CheckResult(
    "a/once/triton/stress", "a", "once", "not_run", "triton", gate="stress", detail="needs triton")  # fmt: skip
ALL = (REFERENCE, STRESS, LIMITS, RED, ABSENT)


def compared(folder: Path, new: Report, old: Report | None = None) -> tuple[int, list[str]]:
    """(exit code, lines) of two reports that went through their files."""
    stored = []
    for name, report in (("old", old or Report(list(ALL))), ("new", new)):
        path = folder / f"{name}.json"
        path.write_text(json_text(report))
        stored.append(read_report(path))
    found = compare(*stored)
    return exit_code(found), list(lines(found))


def with_(**changes: CheckResult | None) -> Report:
    """All checks, with those of these ids' last parts replaced, or left out."""
    kept = {
        check.id.rpartition("/")[2].replace("red.", ""): check for check in ALL if check != ABSENT
    }
    return Report([c for c in (kept | {"absent": ABSENT} | changes).values() if c is not None])


def test_equal_reports_are_equal(tmp_path: Path) -> None:
    code, said = compared(tmp_path, with_())
    assert code == 0
    assert said == [
        "note: judging 4 checks took 4.0 s, then 4.0 s",
        "COMPARED 4 checks that ran in both: 0 failures, 0 notes",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"stress": replace(STRESS, outcome="fail", detail="3 of 9\nmore")},
         "a/once/torch/stress: was pass, is fail: 3 of 9; contract run a/once/torch/stress"),
        ({"stress": None},
         "a/once/torch/stress: gone: it was pass, and the new report has no such check"),
        ({"zeros": None},
         "a/once/red.zeros: gone: it was red as planted, and the new report has no such check"),
        ({"zeros": replace(RED, outcome="missed", detail="green")},
         "a/once/red.zeros: was red as planted, is missed: green; contract run a/once/red.zeros"),
        ({"stress": replace(STRESS, outcome="not_run", detail="no torch")},
         "a/once/torch/stress: was pass, is not run: no torch"),
        ({"stress": replace(STRESS, outcome="not_applicable", detail="none exact")},
         "a/once/torch/stress: was pass, is n/a: none exact"),
        ({"stress": replace(STRESS, outputs_compared=0)},
         "a/once/torch/stress: compares no output any more, was 100"),
        ({"stress": replace(STRESS, outcome="fail", detail="a\x1b[2J\ud800\rb")},
         "a/once/torch/stress: was pass, is fail: a?[2J??b; contract run a/once/torch/stress"),
        ({"absent": replace(ABSENT, required=True)},
         "a/once/triton/stress: still not run though required: needs triton; contract run a/once/triton/stress"),
        ({"more": replace(STRESS, id="b/once/torch/stress", outcome="crash", detail="signal 11")},
         "b/once/torch/stress: new, and crash: signal 11; contract run b/once/torch/stress"),
        ({"reference": replace(REFERENCE, power={})},
         "a/once/reference: power of drop-mid is no longer measured, was 25 %"),
        ({"reference": replace(REFERENCE, power={"drop-mid": 0.0})},
         "a/once/reference: power of drop-mid is 0, was 25 %"),
    ],
)  # fmt: skip
def test_what_is_red_or_lost_fails(
    tmp_path: Path, changes: dict[str, CheckResult | None], line: str
) -> None:
    code, said = compared(tmp_path, with_(**changes))
    assert code == 1
    assert said[0] == f"FAIL {line}"
    assert ": 1 failure, " in said[-1]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"stress": replace(STRESS, bits={"inputs": "01", "outputs": "03"})},
         "bits moved inside the range: a/once/torch/stress"),
        ({"stress": replace(STRESS, bits={"inputs": "00", "outputs": "03"})},
         "other inputs or launches: whether bits moved is not known: a/once/torch/stress"),
        ({"stress": replace(STRESS, bits={})},
         "the new report has no digests: whether bits moved is not known: a/once/torch/stress"),
        ({"stress": replace(STRESS, outputs_compared=50)},
         "compares fewer outputs: 100 -> 50: a/once/torch/stress"),
        ({"stress": replace(STRESS, widest_ulp=2.0)},
         "widest range wider: 1 -> 2 ulps: a/once/torch/stress"),
        ({"stress": replace(STRESS, one_value_share=0.25)},
         "fewer outputs have one allowed value: 50 % -> 25 %: a/once/torch/stress"),
        ({"zeros": replace(RED, gate="exact")},
         "caught by another gate: shapes -> exact: a/once/red.zeros"),
        ({"reference": replace(REFERENCE, power={"drop-mid": 0.2})},
         "power of drop-mid falls: 25 % -> 20 %: a/once/reference"),
        ({"reference": replace(REFERENCE, power={"drop-mid": 0.25, "drop-out": 1})},
         "power of drop-out is new: 100 %: a/once/reference"),
        ({"limits": replace(LIMITS, measured={"threads": 0, "workspace_bytes": 4096})},
         "workspace_bytes 8 -> 4,096: a/once/torch/limits"),
        ({"more": replace(STRESS, id="b/once/torch/stress")},
         "new: pass: b/once/torch/stress"),
        ({"absent": None}, "gone, and was not run before: a/once/triton/stress"),
        ({"absent": replace(ABSENT, outcome="pass", outputs_compared=1)},
         "was not run, is pass: a/once/triton/stress"),
        ({"stress": replace(STRESS, seconds=9.0)},
         "judging took longer: a/once/torch/stress: 1.0 s -> 9.0 s"),
    ],
)  # fmt: skip
def test_what_moved_is_a_note(
    tmp_path: Path, changes: dict[str, CheckResult | None], line: str
) -> None:
    code, said = compared(tmp_path, with_(**changes))
    assert code == 0
    assert f"note: {line}" in said


def test_what_was_red_and_is_good_is_a_note(tmp_path: Path) -> None:
    old = with_(stress=replace(STRESS, outcome="fail"))
    code, said = compared(tmp_path, with_(), old)
    assert code == 0
    assert said[0] == "note: was fail, is pass: a/once/torch/stress"
    assert compared(tmp_path, old, old)[0] == 1


def test_functions_are_compared_on_every_architecture(tmp_path: Path) -> None:
    def limits(registers: int) -> CheckResult:
        code = {"resources": {"registers": registers}}
        entry = {"function": "f", "configuration": [0, 1], "place": 0, "architectures": {"sm_80": code}}  # fmt: skip
        return replace(LIMITS, recorded=(json.dumps(entry),), measured={})

    code, said = compared(tmp_path, with_(limits=limits(40)), with_(limits=limits(32)))
    assert (code, said[0]) == (0, "note: f on sm_80: registers 32 -> 40: a/once/torch/limits")


def test_environments_that_differ_are_said(tmp_path: Path) -> None:
    old, new = with_(), with_()
    old.environment = {"libraries": {"torch": "2.12"}, "python": "3.11"}
    new.environment, new.seed = {"libraries": {"torch": "2.13"}, "python": "3.11"}, 7
    _, said = compared(tmp_path, new, old)
    assert "note: environment: libraries.torch: 2.12 -> 2.13" in said
    assert "note: environment: seed: 0 -> 7" in said
    assert not any("python" in line for line in said)


def test_a_run_that_is_red_as_a_whole_fails(tmp_path: Path) -> None:
    new = with_()
    new.problems, new.interrupted = ["required 'triton' did not run"], True
    code, said = compared(tmp_path, new)
    assert code == 1
    assert said[:2] == [
        "FAIL the new run: interrupted: interrupted after 5 checks",
        "FAIL the new run: problem: required 'triton' did not run",
    ]
    code, said = compared(tmp_path, with_(), new)
    assert code == 0
    assert "note: the old run: problem: required 'triton' did not run" in said


def test_nothing_compared_is_not_green(tmp_path: Path) -> None:
    absent = Report([ABSENT])
    assert compared(tmp_path, absent, absent)[0] == 5
    assert compared(tmp_path, Report(), Report())[0] == 5


def test_many_ids_are_counted(tmp_path: Path) -> None:
    new = Report([replace(STRESS, id=f"a/once/t{i}/stress") for i in range(9)])
    _, said = compared(tmp_path, new, Report([REFERENCE]))
    assert said[1].startswith("note: new: pass: a/once/t0/stress, ")
    assert said[1].endswith("a/once/t5/stress and 3 more")


GOOD: dict[str, Any] = json.loads(json_text(Report([STRESS])))


def damaged(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


def damaged_check(**changes: Any) -> str:
    return damaged(checks=[GOOD["checks"][0] | changes])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no report"),
        ('{"version": "2.1.0"}', "is no report"),
        (damaged(schema=2), "has schema 2; this version reads 1"),
        (damaged(schema=True), "has schema True"),
        (damaged(checks={}), "checks is not a list"),
        (damaged(environment=None), "has no environment"),
        (damaged(problems="x"), "problems is not a list"),
        (damaged(checks=[1]), "checks[0] is no object"),
        (damaged(checks=[{}]), "checks[0] has no id, outcome"),
        (damaged(checks=GOOD["checks"] * 2), "checks[1] has the id of another"),
        (damaged_check(outcome="great"), "checks[0] has outcome 'great'"),
        (damaged_check(outputs_compared=True), "checks[0] has outputs_compared True"),
        (damaged_check(outputs_compared=-5), "checks[0] has outputs_compared -5"),
        (damaged_check(id="a/once\nCOMPARED 9 checks"), "checks[0] has id 'a/once\\nCOMPARED"),
        (damaged_check(id="a/\ud800"), "checks[0] has id 'a/\\ud800'"),
        (damaged_check(power={"x": "1"}), "checks[0] has power"),
        (damaged_check(bits=[1]), "checks[0] has bits [1]"),
        (damaged_check(functions=[{"function": "f"}]), "checks[0] has a function"),
        (damaged_check(widest_ulp=float("nan")), "holds NaN"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(GOOD))
    bad.write_text(text)
    for files in ((good, bad), (bad, good)):
        assert main(["compare", *map(str, files)]) == 4
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"contract: {bad}: ")
        assert said in err
        assert "contract run --json" in err


def test_files_that_cannot_be_read_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert main(["compare", str(tmp_path / "bytes.json"), "x"]) == 4
    assert "is no JSON" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "absent.json"), "x"]) == 4
    assert "absent.json: cannot be read: No such file" in capsys.readouterr().err
    assert main(["compare", str(tmp_path)]) == 4


def test_the_command_prints_and_ends_as_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json_text(with_()))
    b.write_text(json_text(with_(stress=None)))
    assert main(["compare", str(a), str(a)]) == 0
    assert main(["compare", str(a), str(b)]) == 1
    assert "FAIL a/once/torch/stress: gone" in capsys.readouterr().out
