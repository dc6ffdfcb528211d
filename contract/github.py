"""A report for GitHub Actions: annotations as workflow commands, and the summary of the step in Markdown.

    ::error file=kernels/softcap.py,line=41,title=softcap/once/torch/stress::fail: 3 of 1%2C024 outputs ...

Source: docs.github.com, "Workflow commands for GitHub Actions": `%`, CR and LF are escaped in messages, `:` and `,` in
properties, too; a step shows ten annotations of a kind, and a summary holds 1 MiB.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from contract.declared import place_of
from contract.markup import printable
from contract.report import (
    again,
    closing_lines,
    counts_line,
    exit_code,
    kernels,
    reproduce,
    run_problems,
    summary_line,
    words,
    worst_first,
)
from contract.results import CheckResult, Report

#: Annotations of one kind that a step shows.
MOST = 10
#: Bytes of a step's summary, with room for what an earlier command of the step wrote.
SUMMARY_BYTES = 1 << 19
#: Characters of one check's detail in the summary: a table of a thousand rows helps nobody.
DETAIL = 2000


def escaped(text: str) -> str:
    """A message of a workflow command."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escaped_property(text: str) -> str:
    """A property of a workflow command."""
    return escaped(text).replace(":", "%3A").replace(",", "%2C")


def commands(report: Report) -> Iterator[str]:
    """At most ten workflow commands: what is wrong with the run, then the worst checks."""
    bad = worst_first(report)
    found = [_command(kind, text) for kind, text in run_problems(report)]
    found += [_annotation(check) for check in bad[: max(0, MOST - len(found))]]
    yield from found[:MOST]


def _annotation(check: CheckResult) -> str:
    place = place_of(check)
    text = f"{words(check.outcome)}: {check.detail.strip() or 'no detail'}\nreproduce: {reproduce(check)}"
    return _command(check.id, text, place)


def _command(title: str, text: str, place: tuple[str, int] | None = None) -> str:
    properties = {"file": place[0], "line": str(place[1])} if place else {}
    properties["title"] = title
    said = ",".join(f"{name}={escaped_property(value)}" for name, value in properties.items())
    return f"::error {said}::{escaped(text)}"


def lines(report: Report, table: Iterator[str], verbosity: int = 0) -> Iterator[str]:
    """What `--format github` prints: annotations, then the text with workflow commands turned off.

    A detail may hold what a kernel said, and a line that starts with `::` would be taken for a command.
    """
    yield from commands(report)
    token = secrets.token_hex(16)
    yield f"::stop-commands::{token}"
    *rest, last = closing_lines(report, verbosity)
    yield from (printable(line) for line in (*table, *rest))
    yield f"::{token}::"
    # alone on the last line, as everywhere
    yield last


def summary_markdown(report: Report) -> str:
    """The summary of the step: verdict, kernels, what failed and what to run next."""
    verdict = {0: "All good", 1: "Not good", 2: "Interrupted", 5: "Nothing ran"}[exit_code(report)]
    verdicts = kernels(report)
    out = [f"## Kernel contracts: {verdict}", "", f"{_text(summary_line(report))}  "]
    out += [_text(counts_line(report)), ""]
    out += [f"- **{kind}**: {_text(text)}" for kind, text in run_problems(report)]
    bad = worst_first(report)
    if bad:
        out += ["", "| check | outcome | again |", "| --- | --- | --- |"]
        out += [
            f"| {_cell(check.id)} | {words(check.outcome)} | {_cell(reproduce(check))} |"
            for check in bad[:100]
        ]
        if len(bad) > 100:
            out.append(f"\n{len(bad) - 100} more; `{again(report)}` runs them all again.")
        for check in bad[:MOST]:
            out += ["", f"### {_text(check.id)}", "", _fenced(check.detail[:DETAIL])]
    if verdicts:
        out += [
            "",
            "<details><summary>Kernels</summary>",
            "",
            "| kernel | verdict |",
            "| --- | --- |",
        ]
        out += [
            f"| {_cell('/'.join(key))} | {words(verdict)} |"
            for key, verdict in sorted(verdicts.items(), key=lambda item: item[1] != "fail")
        ]
        out += ["", "</details>"]
    return printable("\n".join(out)) + "\n"


def _text(text: str) -> str:
    """Text as text: neither HTML nor Markdown."""
    found = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*_[]|#":
        found = found.replace(sign, f"\\{sign}")
    return " ".join(found.split())


def _cell(text: str) -> str:
    """Code in a cell of a table: Markdown is read inside HTML, too."""
    return f"<code>{_text(text)}</code>"


def _fenced(text: str) -> str:
    """Text between fences longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def write_summary(report: Report) -> str:
    """Append the summary to the file that GITHUB_STEP_SUMMARY names; what went wrong, '' where nothing did.

    No error: the verdict of the run is not the summary's.
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not name:
        return ""
    text = summary_markdown(report)
    if len(text.encode()) > SUMMARY_BYTES:
        text = text.encode()[:SUMMARY_BYTES].decode(errors="ignore") + "\n\n(cut here)\n"
    try:
        # other commands of the step have written to it
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"GITHUB_STEP_SUMMARY {name}: cannot be written: {error.strerror}"
    return ""
