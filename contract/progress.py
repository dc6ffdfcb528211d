"""Progress of a run or sweep on stderr, where that is a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from contract.results import CheckResult


@contextmanager
def progress(
    total: int, color: str = "auto", quiet: bool = False
) -> Iterator[Callable[[CheckResult], None]]:
    """Yields the function to call with each finished check.

    Args:
        total: number of checks.
        color: 'auto', 'always' or 'never'.
        quiet: show nothing even on a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda result: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from contract.render import make_console

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[bad]} bad"),
        TextColumn("{task.fields[last]}", markup=False),
    )
    # Transient: what stays on the screen is the report.
    with Progress(*columns, console=make_console(color, sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=total, bad=0, last="")
        bad = 0

        def on_result(result: CheckResult) -> None:
            nonlocal bad
            bad += not result.good
            bar.update(task, advance=1, bad=bad, last=result.id)

        yield on_result


class Outputs:
    """What a sweep calls with numbers of judged outputs; begun anew for each implementation."""

    def begin(self, name: str, done: int, total: int) -> None:
        """The implementation, how many outputs a ledger has, and how many there are."""

    def add(self, count: int) -> None:
        """So many more are judged; from any thread."""


@contextmanager
def outputs_progress(color: str = "auto", quiet: bool = False) -> Iterator[Outputs]:
    """Yields what a sweep reports to: a bar with the rate in million outputs a second, and the time that is left."""
    if quiet or not sys.stderr.isatty():
        yield Outputs()
        return
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from contract.render import make_console

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{(task.speed or 0.0) / 1e6:.1f} M/s")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.1f} %"),
        Rate(""),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=make_console(color, sys.stderr), transient=True) as bar:

        class Shown(Outputs):
            task = bar.add_task("", total=None)

            def begin(self, name: str, done: int, total: int) -> None:
                bar.remove_task(self.task)
                self.task = bar.add_task(name, total=total, completed=done)

            def add(self, count: int) -> None:
                bar.advance(self.task, count)

        yield Shown()
