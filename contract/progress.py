"""Progress of a run on stderr, where that is a terminal; nothing anywhere else."""

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
