"""A terminal gets a table, a pipe whole lines; colour repeats what the words say."""

from __future__ import annotations

import io

import pytest

from contract.progress import progress
from contract.render import make_console, show
from contract.results import CheckResult, Report


def torch(name: str, gate: str, outcome: str, outputs: int = 0) -> CheckResult:
    kernel, profile, implementation = name.split("/")
    return CheckResult(
        f"{name}/{gate}",
        kernel,
        profile,
        outcome,
        implementation,
        gate=gate,
        outputs_compared=outputs,
    )


def good_report() -> Report:
    return Report(
        [
            CheckResult("a/once/reference", "a", "once", "pass", outputs_compared=100),
            torch("a/once/torch", "stress", "pass", 300),
            torch("a/once/torch", "limits", "not_applicable"),
            CheckResult("a/once/red.zeros", "a", "once", "red_as_planted", control="red.zeros"),
            CheckResult("a/once/green.fma", "a", "once", "green_as_planted", control="green.fma"),
            torch("b,gain=1+w/once/triton", "exact", "not_run"),
        ]
    )


RED = torch("a/once/torch", "exact", "fail")
MISSED = CheckResult("a/once/red.b", "a", "once", "missed", control="red.b")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(report: Report, file: io.StringIO, color: str = "auto", verbosity: int = 0) -> str:
    show(report, make_console(color, file), verbosity)
    return file.getvalue()


LONG = "a_kernel_whose_name_is_long,gain=1+w,form=tanh/two_step/transformers.Qwen3RMSNormForAll"


def test_a_pipe_gets_whole_lines_without_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    report = good_report()
    report.checks += [RED, MISSED, torch(LONG, "stress", "pass", 1234567)]
    text = shown(report, io.StringIO())
    lines = text.splitlines()
    assert "\x1b" not in text
    assert f"{LONG}: stress pass (1,234,567 outputs)" in lines
    assert "a/once/torch: stress pass, limits n/a, exact FAIL (300 outputs)" in lines
    assert "a/once controls: 1 red as planted, 1 green as planted, 1 MISSED" in lines
    assert "a/once/reference: pass (100 outputs)" in lines
    assert lines[-1] == "5 passed, 2 failed, 1 skipped"


def test_force_color_colours_a_pipe_and_still_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(Report([torch(LONG, "stress", "pass")]), io.StringIO())
    assert "\x1b[1;32mSUMMARY" in text
    assert f"{LONG}: stress pass" in text


def test_no_color_wins_over_force_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(good_report(), Terminal())
    assert "\x1b" in shown(good_report(), io.StringIO(), "always")
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in shown(good_report(), Terminal(), "never")


def test_a_terminal_gets_a_table_that_says_red_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    report = good_report()
    report.checks += [RED, MISSED]
    lines = shown(report, Terminal(), "never").splitlines()
    header = next(line for line in lines if line.strip().startswith("kernel"))
    kernel = next(line for line in lines if "a/once: reference pass" in line)
    row = next(line for line in lines if line.split()[:1] == ["torch"])
    # In their columns.
    for line, column, cell in (
        (row, "stress", "pass"),
        (row, "exact", "FAIL"),
        (row, "limits", "n/a"),
        (row, "shapes", "  "),
        (kernel, "controls", "1 + 1, 1 MISSED"),
    ):
        assert line[header.index(column) :].startswith(cell)
    assert row.rstrip().endswith("300")
    assert lines.index(row) > lines.index(kernel)


def test_a_narrow_terminal_gets_the_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "a/once/torch: stress pass, limits n/a (300 outputs)" in shown(
        good_report(), Terminal(), "never"
    )


def test_quiet_has_no_table() -> None:
    text = shown(good_report(), io.StringIO(), "never", -1)
    assert "a/once/torch" not in text
    assert "SUMMARY 2 kernels" in text


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    terminal, pipe = Terminal(), io.StringIO()
    for file in (terminal, pipe):
        monkeypatch.setattr("sys.stderr", file)
        with progress(2, "never") as on_result:
            on_result(RED)
            on_result(good_report().checks[0])
    for part in ("2/2", "1 bad", "a/once/reference"):
        assert part in terminal.getvalue()
    assert pipe.getvalue() == ""


def test_quiet_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress(1, quiet=True) as on_result:
        on_result(RED)
    assert terminal.getvalue() == ""
