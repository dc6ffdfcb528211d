"""A report as a table on a terminal, as plain lines of any length in a pipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from contract.engines import HOST
from contract.report import closing_lines, exit_code, summary_line, words
from contract.results import CheckResult, Report
from contract.select import GATES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Columns of a terminal below which the gates leave no room for names: it gets the plain lines.
TABLE_WIDTH = 120
# Starts of lines that tell of something red.
_BAD = (
    "FAIL ",
    "CRASH ",
    "TIMEOUT ",
    "OUT OF MEMORY ",
    "MISSED ",
    "RED ELSEWHERE ",
    "NOT RUN ",
    "PROBLEM:",
    "INTERRUPTED",
    "limit problem:",
)


@dataclass
class Line:
    """One line of the table.

    Attributes:
        kernel: 'rms_norm,gain=1+w/two_step'.
        subject: 'reference', 'controls', or the implementation (with its engine, but for 'host').
        checks: its checks.
    """

    kernel: str
    subject: str
    checks: list[CheckResult] = field(default_factory=list)

    @property
    def outputs(self) -> int:
        return sum(check.outputs_compared for check in self.checks)

    def gates(self) -> dict[str, str]:
        """Gate -> its outcome in words, bad ones in capitals."""
        return {check.gate or self.subject: _cell(check) for check in self.checks}

    def tally(self) -> str:
        """'5 red as planted, 2 green as planted', of controls; the bad ones in capitals."""
        cells = Counter(_cell(check) for check in self.checks)
        return ", ".join(f"{count} {cell}" for cell, count in sorted(cells.items(), key=_order))


def _order(item: tuple[str, int]) -> tuple[bool, str]:
    return "as planted" not in item[0], "" if item[0].startswith("red as") else item[0]


def _cell(check: CheckResult) -> str:
    cell = words(check.outcome) if check.good else words(check.outcome).upper()
    return f"{cell} ({check.captured} captured)" if check.captured else cell


def table_lines(report: Report) -> list[Line]:
    """The lines, grouped by kernel: its reference, its implementations, its controls."""
    groups: dict[str, dict[str, Line]] = {}
    for check in report.checks:
        kernel = f"{check.kernel}/{check.profile}"
        if check.control is not None:
            subject = "controls"
        elif check.implementation is None:
            subject = "reference"
        else:
            engine = "" if check.engine == HOST else f" on {check.engine}"
            subject = check.implementation + engine
        lines = groups.setdefault(kernel, {})
        lines.setdefault(subject, Line(kernel, subject)).checks.append(check)
    place = {"reference": 0, "controls": 2}
    return [
        line
        for lines in groups.values()
        for line in sorted(lines.values(), key=lambda line: place.get(line.subject, 1))
    ]


def plain_lines(report: Report) -> Iterator[str]:
    """The table as lines that nothing cuts."""
    for line in table_lines(report):
        if line.subject == "controls":
            yield f"{line.kernel} controls: {line.tally()}"
        elif line.subject == "reference":
            verdict = " ".join(line.gates().values())
            yield f"{line.kernel}/reference: {verdict} ({line.outputs:,} outputs)"
        else:
            cells = ", ".join(f"{gate} {cell}" for gate, cell in line.gates().items())
            yield f"{line.kernel}/{line.subject}: {cells} ({line.outputs:,} outputs)"


def table(report: Report) -> Table:
    """The table for a terminal: gates as columns, below each kernel a line per implementation.

    The kernel's own line tells its reference and its controls, as planted red + green.
    """
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("kernel", overflow="fold", min_width=20)
    for gate in GATES[1:]:
        shown.add_column(gate, no_wrap=True)
    shown.add_column("controls")
    shown.add_column("outputs", justify="right", no_wrap=True)
    groups: dict[str, dict[str, Line]] = {}
    for line in table_lines(report):
        groups.setdefault(line.kernel, {})[line.subject] = line
    for kernel, lines in groups.items():
        own = [lines.pop(subject, Line(kernel, subject)) for subject in ("reference", "controls")]
        verdict = " ".join(own[0].gates().values())
        name = f"{kernel}: reference {verdict}" if verdict else kernel
        blank = [""] * len(GATES[1:])
        outputs = sum(line.outputs for line in own)
        shown.add_row(_text(name), *blank, _text(_planted(own[1])), f"{outputs:,}")
        for line in lines.values():
            gates = [_text(line.gates().get(gate, "")) for gate in GATES[1:]]
            shown.add_row(_text(f"  {line.subject}"), *gates, "", f"{line.outputs:,}")
        shown.add_section()
    return shown


def _planted(line: Line) -> str:
    """'5 + 2' of five red and two green controls as planted, then any other outcome."""
    found = Counter(check.outcome for check in line.checks)
    cells = Counter(_cell(check) for check in line.checks if "as_planted" not in check.outcome)
    rest = "".join(f", {count} {cell}" for cell, count in sorted(cells.items()))
    return f"{found['red_as_planted']} + {found['green_as_planted']}{rest}" if line.checks else ""


def _text(cell: str) -> Text:
    """The cell in its colour; capitals already tell what is bad."""
    from rich.text import Text

    bad = cell.isupper() or any(word.isupper() and len(word) > 2 for word in cell.split())
    return Text(cell, style="bold red" if bad else "green" if cell == "pass" else "")


def make_console(color: str = "auto", file: IO[str] | None = None) -> Console:
    """A console that obeys --color, then NO_COLOR, then FORCE_COLOR, then the terminal."""
    from rich.console import Console

    if color == "never" or (color == "auto" and os.environ.get("NO_COLOR")):
        return Console(file=file, color_system=None, highlight=False)
    if color == "always":
        return Console(file=file, force_terminal=True, color_system="standard", highlight=False)
    return Console(file=file, highlight=False)


def show(report: Report, console: Console, verbosity: int = 0) -> None:
    """Print the table (not with -q) and everything below it."""
    from rich.text import Text

    if verbosity >= 0:
        # Not console.is_terminal: FORCE_COLOR makes a pipe a terminal, and a table there cuts ids.
        if console.file.isatty() and console.width >= TABLE_WIDTH:
            console.print(table(report))
        else:
            _print_plain(console, plain_lines(report))
    closing = summary_line(report)
    for line in closing_lines(report, verbosity):
        style = "bold red" if line.startswith(_BAD) else ""
        if line == closing:
            style = "bold green" if exit_code(report) == 0 else "bold red"
        console.print(Text(line, style=style), soft_wrap=True)


def _print_plain(console: Console, lines: Iterator[str]) -> None:
    from rich.text import Text

    if console.color_system is None:
        # rich lays out a line in a millisecond; without colours it stays as it is
        console.file.writelines(f"{line}\n" for line in lines)
        return
    for line in lines:
        bad = any(word.isupper() and len(word) > 3 for word in line.replace(",", " ").split()[1:])
        console.print(Text(line, style="bold red" if bad else ""), soft_wrap=True)
