"""Annotations are at most ten, the worst first, and nothing that a kernel said becomes a workflow command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract import github
from contract.declared import place_of
from contract.github import commands, summary_markdown, write_summary
from contract.results import CheckResult, Report

Run = Callable[..., tuple[int, str, str]]


def check(name: str, outcome: str = "pass", **more: Any) -> CheckResult:
    kernel, profile, *rest = name.split("/")
    facts: dict[str, Any] = {"control": rest[0]} if len(rest) == 1 else {"implementation": rest[0]}
    return CheckResult(name, kernel, profile, outcome, **{**facts, **more})


HOSTILE = "50 % of a, b: c\r\nsecond\n::warning::x"


def test_messages_and_properties_are_escaped() -> None:
    (line,) = commands(Report([check("a/once/torch/stress", "fail", detail=HOSTILE)]))
    assert line == (
        "::error title=a/once/torch/stress::fail: 50 %25 of a, b: c%0D%0Asecond%0A::warning::x"
        "%0Areproduce: contract run a/once/torch/stress"
    )
    assert github.escaped_property("C:\\a,b%\r\n") == "C%3A\\a%2Cb%25%0D%0A"
    assert github.escaped("a: b, c%\n") == "a: b, c%25%0A"


def test_ten_annotations_the_worst_first() -> None:
    report = Report(
        [
            check("a/once/triton/stress", "not_run", required=True),
            check("a/once/red.x", "red_elsewhere"),
            check("a/once/red.y", "missed"),
            *(check(f"a/once/torch{i}/stress", "crash") for i in range(9)),
            check("a/once/torch/stress", "fail"),
            check("a/once/reference", "fail", control=None, gate="reference"),
            check("a/once/good/stress"),
        ],
        problems=["P: 1"],
    )
    titles = [re.search("title=([^:]*)::(.*)", line) for line in commands(report)]
    found = [(m[1], m[2].partition("%0A")[0]) for m in titles if m]
    assert len(found) == 10
    assert found[0] == ("problem", "P: 1")
    assert [name for name, _ in found[1:5]] == [
        "a/once/reference", "a/once/torch/stress", "a/once/torch0/stress", "a/once/torch1/stress",
    ]  # fmt: skip
    report.checks = report.checks[:3]
    assert [github.escaped(line).split("::")[1] for line in commands(report)] == [
        "error title=problem", "error title=a/once/red.y", "error title=a/once/red.x",
        "error title=a/once/triton/stress",
    ]  # fmt: skip


def test_eleven_problems_are_ten_annotations() -> None:
    report = Report([check("a/once/torch/x", "fail")], problems=[str(i) for i in range(11)])
    assert len(list(commands(report))) == 10


def test_a_good_run_has_none() -> None:
    assert list(commands(Report([check("a/once/torch/stress")]))) == []


def test_what_a_kernel_said_is_no_command() -> None:
    report = Report([check("a/once/torch/stress", "fail", detail="x\n::set-env name=A::b")])
    said = list(github.lines(report, iter(["table"])))
    stop = next(i for i, line in enumerate(said) if line.startswith("::stop-commands::"))
    token = said[stop].rpartition(":")[2]
    resume = said.index(f"::{token}::")
    assert len(token) == 32
    assert stop < said.index("table") < said.index("    ::set-env name=A::b") < resume
    assert all(line.startswith("::error ") for line in said[:stop])
    assert said[resume + 1 :] == ["0 passed, 1 failed, 0 skipped"]
    # nobody can write it beforehand
    assert token not in "".join(github.lines(report, iter(())))


def test_the_summary_says_verdict_failures_and_what_to_run() -> None:
    report = Report(
        [
            check("a/once/torch/stress", "fail", detail="<b>|``` x"),
            check("b/once/torch/stress", outputs_compared=1),
        ],
        limit_problems=["L"],
    )
    text = summary_markdown(report)
    assert text.startswith("## Kernel contracts: Not good\n\nSUMMARY 2 kernels: 1 pass, 1 fail")
    assert (
        "| <code>a/once/torch/stress</code> | fail | <code>contract run a/once/torch/stress</code> |"
        in text
    )
    assert "````text\n<b>|``` x\n````" in text
    assert "- **limit problem**: L" in text
    assert text.index("| <code>a/once</code> | fail |") < text.index(
        "| <code>b/once</code> | pass |"
    )
    good = summary_markdown(Report([check("b/once/torch/stress", outputs_compared=1)]))
    assert good.startswith("## Kernel contracts: All good")
    assert "| check |" not in good
    assert summary_markdown(Report()).startswith("## Kernel contracts: Nothing ran")


def test_markdown_and_html_of_an_id_are_text() -> None:
    hostile = "a|<img src=x>*_`/once/torch/stress"
    text = summary_markdown(Report([check(hostile, "fail")]))
    assert "<img" not in text
    row = next(line for line in text.splitlines() if "| fail | " in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 4


def test_what_no_terminal_can_show_is_left_out() -> None:
    report = Report([check("a/once/torch/stress", "fail", detail="x\ud800\x1b[31m\x00y")])
    for text in ("\n".join(github.lines(report, iter(()))), summary_markdown(report)):
        assert "x[31my" in text.replace("\\", "")
        text.encode()


def test_the_summary_is_appended_where_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report([check("a/once/torch/stress")])
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert write_summary(report) == ""
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    assert write_summary(report) == ""
    assert file.read_text() == "before\n" + summary_markdown(report)
    monkeypatch.setattr(github, "SUMMARY_BYTES", 100)
    assert write_summary(report) == ""
    assert file.read_text().endswith("\n\n(cut here)\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert "cannot be written: Is a directory" in write_summary(report)


def test_a_run_names_file_and_line_of_the_declaration(
    project: Path, contract_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project / "summary.md"))
    path = project / "contracts" / "scaled.py"
    path.write_text(path.read_text().replace("product = x * scale\n", "product = x * 2.0\n", 1))
    code, out, err = contract_run("scaled/two_step/torch/exact", "--format", "github")
    assert (code, err) == (1, "")
    declared = (
        path.read_text().splitlines().index('@contract.implementation("scaled", name="torch")')
    )
    title = "title=scaled/two_step/torch/exact"
    first, *_, last = out.splitlines()
    assert first.startswith(f"::error file=contracts/scaled.py,line={declared + 1},{title}::fail: ")
    assert last == "0 passed, 1 failed, 0 skipped"
    assert "scaled/two\\_step/torch/exact" in (project / "summary.md").read_text()
    # a control is declared where it is planted, the reference where it is written
    lines = path.read_text().splitlines()
    for name, start in (("red.rounds_once", "@contract.red("), ("reference", "def scaled(")):
        more = {"control": name} if "." in name else {"control": None}
        found = place_of(check(f"scaled/two_step/{name}", "fail", **more))
        line = next(i for i, text in enumerate(lines, 1) if text.startswith(start))
        assert found == ("contracts/scaled.py", line)
