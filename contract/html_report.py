"""A report as one HTML file for a reader who was not there: what was checked, what failed, what to run next.

It needs nothing else: no script, no font, no picture from outside. The page of each kernel is contract.html_kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from contract import report as reporting
from contract.declared import KernelFacts
from contract.html_kernel import Key, kernel_page, mark, number, table
from contract.markup import Markup, el
from contract.render import Line, table_lines
from contract.report import again, explain, reproduce, words, worst_first
from contract.results import Report
from contract.select import GATES

#: So many failures are shown in full; of the others the table of kernels and the kernels' pages tell.
IN_FULL = 100
#: Said to the browser, so that no mistake of ours loads anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: Words that a stranger needs, from docs/words.md.
WORDS = {
    "kernel": "a contract with one set of parameters under one profile; it passes when its reference and every"
    " implementation that ran pass, and at least one ran",
    "range": "the set of values that the contract allows for one output; every output bit is compared with it",
    "rounding point": "a named step at which a value is rounded to a format",
    "power": "the share of outputs that leave their range when one rounding point is dropped or one option changed: what"
    " the inputs are able to show",
    "gate": "one kind of check: shapes (typical inputs), stress (drawn inputs), exact (inputs with one allowed value at"
    " every output), invariance, bounds, limits (resources)",
    "control": "a planted kernel: a red one has one fault and must fail, a green one is legal and must pass; one that is"
    " missed means that the checks are blind to that fault",
    "not run": "what could not be checked here; it counts neither as passed nor as failed",
    "ulp": "the step of the format at the larger of the output and its row's root mean square",
}


def html_text(report: Report, facts: Mapping[Key, KernelFacts]) -> str:
    """The whole file.

    Args:
        facts: (kernel, profile) -> what is declared of it; a kernel without them is shown by its checks alone.
    """
    verdicts = reporting.kernels(report)
    anchors = {key: f"kernel-{place}" for place, key in enumerate(verdicts, 1)}
    style = (resources.files("contract") / "report.css").read_text(encoding="utf-8")
    code = reporting.exit_code(report)
    title = {0: "all good", 1: "not good", 2: "interrupted", 5: "nothing ran"}[code]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"Kernel contracts: {title}"),
        # our own file, and no text of a report
        el("style", Markup(style)),
    )
    pages = [
        kernel_page(report, key, verdicts[key], facts.get(key, KernelFacts()), anchors[key])
        for key in verdicts
    ]
    body = el(
        "body",
        el("h1", "Kernel contracts", mark(title, "good" if code == 0 else "bad")),
        el("p", reporting.summary_line(report), class_="quiet"),
        _tiles(report),
        _navigation(),
        *_failures(report, anchors),
        *_absent(report),
        *_next(report, code),
        *_checked(report, verdicts, anchors),
        el("h2", "Kernels", id="kernels"),
        *(pages or [el("p", "None.")]),
        *_environment(report),
        el("h2", "Words", id="words"),
        el("dl", *(el(tag, text) for pair in WORDS.items() for tag, text in zip(("dt", "dd"), pair, strict=True))),
    )  # fmt: skip
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def write_html(report: Report, facts: Mapping[Key, KernelFacts], path: Path) -> None:
    """Write the file, all or nothing."""
    from contract.store import atomic_write_text

    atomic_write_text(path, html_text(report, facts))


def _tiles(report: Report) -> Markup:
    facts = reporting.summary(report)
    controls = facts["controls"]
    as_planted = controls["red_as_planted"] + controls["green_as_planted"]
    bad = controls["missed"] + controls["red_elsewhere"] + controls["crashed"]
    passed, failed, skipped = reporting.counts(report)
    shown = (
        (f"{facts['pass']} of {facts['kernels']}", f"kernels pass; {facts['fail']} fail, {facts['not_run']} not run"),
        (f"{as_planted} of {as_planted + bad}", f"controls as planted; {controls['missed']} missed"),
        (f"{failed} failed", f"of all checks; {passed} passed, {skipped} skipped"),
        (number(facts["outputs_compared"]), "outputs compared with their ranges"),
        (number(facts["limit_problems"]), "limit problems"),
        (el("time", f"{report.seconds:,.1f} s"), f"effort {report.effort}, seed {report.seed}, {facts['from_receipts']} checks from receipts"),
    )  # fmt: skip
    return el(
        "div",
        *(el("div", el("b", a), el("span", b), class_="tile") for a, b in shown),
        class_="tiles",
    )


def _navigation() -> Markup:
    links = ("failed", "What failed"), ("absent", "What did not run"), ("next", "What to run next"), ("checked", "What was checked"), ("kernels", "Kernels"), ("environment", "Environment"), ("words", "Words")  # fmt: skip
    return el("nav", *(el("a", name, href=f"#{anchor}") for anchor, name in links))


def _failures(report: Report, anchors: Mapping[Key, str]) -> Iterator[Markup]:
    yield el("h2", "What failed", id="failed")
    bad, problems = worst_first(report), reporting.run_problems(report)
    if not bad and not problems:
        yield el("p", "Nothing.")
    for kind, text in problems:
        yield el("article", el("h3", mark(kind, "bad")), el("pre", text))
    for check in bad[:IN_FULL]:
        required = " though required" if check.outcome == "not_run" else ""
        yield el(
            "article",
            el("h3", mark(words(check.outcome) + required, "bad"), " ",
               el("a", check.id, href=f"#{anchors[check.kernel, check.profile]}")),
            el("p", f"Planted: {check.planted}") if check.planted else "",
            el("pre", check.detail or "no detail"),
            el("p", "Again: ", el("code", reproduce(check))),
        )  # fmt: skip
    if len(bad) > IN_FULL:
        yield el("p", f"{len(bad) - IN_FULL} more: see the kernels below.")


def _absent(report: Report) -> Iterator[Markup]:
    yield el("h2", "What did not run", id="absent")
    reasons = reporting.reasons(report, "not_run", verbose=False)
    if not reasons:
        yield el("p", "Everything that was selected ran.")
        return
    yield el("ul", *(el("li", reason.removeprefix("not run: ")) for reason in reasons))


def _next(report: Report, code: int) -> Iterator[Markup]:
    yield el("h2", "What to run next", id="next")
    steps: list[tuple[str, str]] = []
    if report.interrupted:
        steps.append(("the same command again", "continues: what is done is taken from the store"))
    steps += [
        (reproduce(check), f"the first failure again, {check.id}")
        for check in worst_first(report)[:1]
    ]
    if command := explain(report):
        steps.append((command, "which rounding, option or parameter it is"))
    if steps and not report.interrupted:
        steps.append((again(report), "everything that was not good, after a repair"))
    if code == 5:
        steps.append(
            (
                "contract doctor",
                "which engines, compilers and libraries are here, and why not the others",
            )
        )
    if code == 0:
        steps.append(("contract run --effort nightly", "more rows, seeds and samples of the same"))
    steps.append(("contract compare OLD.json NEW.json", "what moved between two runs with --json"))
    yield el("ul", *(el("li", el("code", command), ": ", why) for command, why in steps))


def _checked(
    report: Report, verdicts: Mapping[Key, str], anchors: Mapping[Key, str]
) -> Iterator[Markup]:
    yield el("h2", "What was checked", id="checked")
    by_name = {"/".join(key): key for key in verdicts}
    rows: list[list[object]] = []
    for line in table_lines(report):
        key = by_name[line.kernel]
        rows.append(
            [
                el("a", line.kernel, href=f"#{anchors[key]}"),
                f"controls: {line.tally()}" if line.subject == "controls" else line.subject,
                *_cells(line),
                number(line.outputs),
            ]
        )
    yield table(["kernel", "what", *GATES, "#outputs"], rows)
    yield el("ul", *(el("li", line) for line in (reporting.outputs_line(report), *report.notes)))


def _cells(line: Line) -> list[object]:
    """A cell for each gate; none of controls, which are caught by one or the other."""
    checks = [] if line.subject == "controls" else line.checks
    found = {check.gate: mark(words(check.outcome), check=check) for check in checks}
    return [found.get(gate, "") for gate in GATES]


def _environment(report: Report) -> Iterator[Markup]:
    yield el("h2", "Environment", id="environment")
    yield el("p", "A verdict holds for these versions and this processor.", class_="quiet")
    pairs = [("effort", report.effort), ("seed", report.seed), *_flat(report.environment)]
    yield el("dl", *(el(tag, value) for pair in pairs for tag, value in zip(("dt", "dd"), pair, strict=True)))  # fmt: skip
    said = reporting.engine_lines(report)
    if said:
        yield el("ul", *(el("li", line) for line in said))


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{prefix}{name}.")
        else:
            yield prefix + str(name), "absent" if one is None else one
