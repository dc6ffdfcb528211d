"""The page of one kernel in the HTML report: rounding points with their power, gates, plots, controls, resources."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from contract import plots, recordbook, sketch
from contract.compiled.architectures import ARCHITECTURES
from contract.compiledbook import name_of
from contract.declared import KernelFacts
from contract.engines import HOST
from contract.markup import Markup, el
from contract.report import WORST, reproduce, words
from contract.results import CheckResult, Report

Key = tuple[str, str]
#: What the plots show.
LEGEND = (
    "Dots are outputs, red squares refused ones; the light band behind each is what the contract allows. Error 0 is the value"
    " without any rounding, in float64; a kernel that rounds once, at its end, stays within half an ulp."
)
#: Outcome -> colour; the words stand beside it.
_COLOURS = {"pass": "good", "red_as_planted": "good", "green_as_planted": "good"}


def mark(text: str, colour: str = "", check: CheckResult | None = None) -> Markup:
    """A word in its colour."""
    if check is not None:
        colour = _COLOURS.get(check.outcome, "idle") if check.good else "bad"
    return el("span", text, class_=f"mark {colour}")


def number(value: float | None, digits: int = 0) -> str:
    """Grouped digits; a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share; a dash for None."""
    return "-" if share is None else f"{100 * share:.3g} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table; a head that starts with # is of numbers, one with ~ of long text."""
    kinds = {"#": "number", "~": "detail"}
    classes = [kinds.get(head[:1]) for head in heads]
    head = el(
        "tr", *(el("th", h.lstrip("#~"), class_=c) for h, c in zip(heads, classes, strict=True))
    )
    body = [
        el("tr", *(el("td", cell, class_=c) for cell, c in zip(row, classes, strict=True)))
        for row in rows
    ]
    return el("div", el("table", el("thead", head), el("tbody", *body)), class_="scroll")


def kernel_page(report: Report, key: Key, verdict: str, facts: KernelFacts, anchor: str) -> Markup:
    """Everything that a report has of one kernel; open where something is not good."""
    checks = [check for check in report.checks if (check.kernel, check.profile) == key]
    name = "/".join(key)
    colour = {"pass": "good", "fail": "bad"}.get(verdict, "idle")
    bad = sum(not check.good for check in checks)
    more = f" {bad} not good" if bad else ""
    return el(
        "details",
        el("summary", mark(words(verdict), colour), " ", name, el("span", more, class_="quiet")),
        el("p", facts.summary) if facts.summary else "",
        el("p", f"Rounds as: {facts.users}", class_="quiet") if facts.users else "",
        el("p", "Again: ", el("code", reproduce(checks[0]).replace(checks[0].id, name))),
        *_points(checks, facts),
        *_implementations(checks),
        *_controls(checks, facts),
        *_resources(checks),
        id=anchor,
        class_="kernel",
        open="" if bad else None,
    )


def _points(checks: Sequence[CheckResult], facts: KernelFacts) -> Iterator[Markup]:
    """Rounding points with their power, then options and parameters, then freedoms."""
    reference = next((c for c in checks if c.implementation is None and c.control is None), None)
    power = dict(reference.power) if reference is not None else {}
    if reference is not None:
        yield el("h3", "Reference ", mark(words(reference.outcome), check=reference))
    rows = [
        [
            name,
            form or "not rounded",
            _power(power.pop(f"drop-{name}", None)),
            _power(power.pop(f"truncate-{name}", None)),
            facts.vacuous.get(name, ""),
        ]
        for name, form in facts.points.items()
    ]
    if rows:
        heads = (
            "rounding point",
            "format",
            "power when dropped",
            "power when truncated",
            "~cannot be shown",
        )
        yield table(heads, rows)
    if power:
        yield table(
            ("option, parameter or point changed", "power", "~cannot be shown"),
            [
                [
                    name,
                    _power(share),
                    facts.vacuous.get(name) or facts.vacuous.get(name.partition("=")[0], ""),
                ]
                for name, share in sorted(power.items(), key=lambda i: (i[1], i[0]))
            ],
        )
    if facts.freedoms:
        rows = [[freedom, source] for freedom, source in facts.freedoms.items()]
        yield el(
            "details", el("summary", "Freedoms"), table(("freedom", "~source of its bound"), rows)
        )


def _power(share: float | None) -> Markup | str:
    if share is None:
        return "-"
    bar = el("i", style=f"width:{100 * min(1.0, share):.4g}%")
    return el("span", el("span", bar, class_="power"), percent(share))


def _implementations(checks: Sequence[CheckResult]) -> Iterator[Markup]:
    groups: dict[tuple[str, str], list[CheckResult]] = defaultdict(list)
    for check in checks:
        if check.implementation is not None:
            groups[check.implementation, check.engine].append(check)
    for (name, engine), group in groups.items():
        yield el("h3", name if engine == HOST else f"{name} on {engine}")
        rows = [
            [
                check.gate or "",
                mark(words(check.outcome), check=check),
                number(check.outputs_compared),
                percent(check.one_value_share),
                number(check.widest_ulp, 2),
                el("time", f"{check.seconds:.2f}"),
                _notes(check),
            ]
            for check in group
        ]
        yield table(
            ("gate", "outcome", "#outputs", "#one value", "#widest, ulps", "#seconds", "~notes"),
            rows,
        )
        compiled = sorted({how for check in group for how in check.compiled})
        if compiled:
            yield el("p", "Compiled: ", "; ".join(compiled), class_="quiet")
        yield from _plots(group)


def _notes(check: CheckResult) -> Markup | str:
    first = check.detail.strip().partition("\n")[0]
    captured = [f"{check.captured} rows captured from a model"] if check.captured else []
    said = [text for text in (first, *captured, *check.notes) if text]
    return "; ".join(said)


def _plots(group: Sequence[CheckResult]) -> Iterator[Markup]:
    """Of typical and of drawn inputs; of exact rows where they are red."""
    if any((found := sketch.read(check.sketch)) and found.points for check in group):
        yield el("p", LEGEND, class_="quiet")
    for check in group:
        found = sketch.read(check.sketch)
        if found is None or (check.gate == "exact" and check.good):
            continue
        if found.none:
            yield el("p", f"No plot of {check.gate}: {found.none}.", class_="quiet")
            continue
        refused = sum(point[-1] for point in found.points)
        said = f"{check.gate}: {len(found.points)} outputs of {found.output} ({found.format}), {refused} refused"
        out = f"; {number(found.left_out)} not finite are left out" if found.left_out else ""
        total = number(sum(found.widths.values()))
        yield el(
            "div",
            el("figure", plots.errors(found), el("figcaption", said, out)),
            el("figure", plots.error_bars(found), el("figcaption", f"{check.gate}: errors of {number(sum(found.errors.values()))} outputs")),
            el("figure", plots.width_bars(found), el("figcaption", f"{check.gate}: how much is allowed, {total} outputs")),
            class_="plots",
        )  # fmt: skip


def _controls(checks: Sequence[CheckResult], facts: KernelFacts) -> Iterator[Markup]:
    """What was planted and what became of it, the failing ones first."""
    group = [check for check in checks if check.control is not None]
    if not group:
        return
    ranks = {outcome: rank for rank, outcome in enumerate(WORST)}
    group.sort(key=lambda c: (c.good, ranks.get(c.outcome, len(ranks)) if not c.good else 0))
    bad = sum(not check.good for check in group)
    title = f"Controls: {len(group) - bad} of {len(group)} as they must be"
    rows = [
        [
            check.control,
            mark(words(check.outcome), check=check),
            check.planted
            or facts.planted.get(check.control or "", "")
            or _automatic(check.control or ""),
            check.gate or "-",
            number(check.outputs_compared),
            check.detail.strip().partition("\n")[0],
        ]
        for check in group
    ]
    shown = table(("control", "outcome", "~planted", "gate", "#outputs", "~detail"), rows)
    yield el("h3", title)
    yield el("details", el("summary", "all controls"), shown, open="" if bad else None)


def _automatic(name: str) -> str:
    """What an automatic control does, by its name."""
    _, _, what = name.partition(".")
    for prefix, said in (("drop-", "does not round at"), ("truncate-", "truncates at")):
        if what.startswith(prefix):
            return f"{said} {what.removeprefix(prefix)}"
    if name.startswith("green."):
        return "a legal execution of the reference, one freedom driven hard"
    return f"the reference with {what}" if "=" in what else "a null kernel"


def _resources(checks: Sequence[CheckResult]) -> Iterator[Markup]:
    """Counted resources, of the host and of each architecture that code was compiled for."""
    hosts = [check for check in checks if check.measured]
    compiled = [(check, json.loads(one)) for check in checks for one in check.recorded]
    if not hosts and not compiled:
        return
    yield el("h3", "Resources of one launch")
    if hosts:
        names = list(dict.fromkeys(name for check in hosts for name in check.measured))
        rows = [
            [
                f"{c.implementation} on {recordbook.architecture()}",
                *(number(c.measured.get(n)) for n in names),
            ]
            for c in hosts
        ]
        yield table(("implementation", *(f"#{_head(name)}" for name in names)), rows)
    groups: dict[tuple[str, ...], list[tuple[str, str, Mapping[str, int]]]] = defaultdict(list)
    for check, entry in compiled:
        for architecture in sorted(entry["architectures"], key=_generation):
            counts = entry["architectures"][architecture]["resources"]
            who = f"{check.implementation}: {name_of(entry)}"
            groups[tuple(counts)].append((who, architecture, counts))
    # NVIDIA and AMD count other things
    for counted, found in groups.items():
        rows = [[who, where, *(number(counts[n]) for n in counted)] for who, where, counts in found]
        yield table(("function", "architecture", *(f"#{_head(name)}" for name in counted)), rows)


def _generation(architecture: str) -> tuple[int, str]:
    """The place of an architecture in the framework's table, oldest first; one that is not there comes last."""
    names = list(ARCHITECTURES)
    return names.index(architecture) if architecture in names else len(names), architecture


def _head(name: str) -> str:
    return name.replace("_", " ")
