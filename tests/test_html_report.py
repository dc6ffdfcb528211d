"""One file that needs nothing else, in which nothing that a kernel said is markup, and every kernel has its page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from contract.declared import KernelFacts
from contract.html_report import IN_FULL, html_text
from contract.results import CheckResult, Report
from contract.sketch import Sketch

Run = Callable[..., tuple[int, str, str]]
VOID = {"meta", "br"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y> & \x00\x1b\ud800"


class Page(HTMLParser):
    """A page, refused where an element is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"path", "line", "rect"}
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self) -> str:
        return "".join(data for tag, data in self.texts if tag != "style")

    def with_(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.elements
            if name == tag and all(found.get(k) == v for k, v in wanted.items())
        ]


def check(name: str, outcome: str = "pass", **more: Any) -> CheckResult:
    kernel, profile, rest = name.split("/", 2)
    facts: dict[str, Any] = {"outputs_compared": 10}
    if rest.startswith(("red.", "green.")):
        facts["control"] = rest
    elif rest == "reference":
        facts["gate"] = rest
    else:
        facts["implementation"], facts["gate"] = rest.rsplit("/", 1)
    return CheckResult(name, kernel, profile, outcome, **{**facts, **more})


def sketched() -> str:
    found = Sketch("out", "bf16", "input x", left_out=2)
    found.points = [(-1.0, 0.25, -0.5, 0.5, False), (2.0, 3.0, -0.5, 0.5, True)]
    found.errors.update([1, 12])
    found.widths.update({"one value": 1, "1": 1})
    return found.text()


ENTRY = {
    "function": "f", "configuration": [0, 1], "place": 0,
    "architectures": {"sm_80": {"resources": {"registers": 77, "threads": 256}}},
}  # fmt: skip


def a_report() -> Report:
    return Report(
        [
            check("a/once/reference", power={"drop-mid": 0.25, "truncate-out": 1.0, "form=b": 0.125}),
            check("a/once/torch/shapes", one_value_share=0.5, widest_ulp=1.5, sketch=sketched(), seconds=1.25),
            check("a/once/torch/stress", "fail", detail="3 of 9\nrow 7", reproduce="contract run a/once/torch/stress --seed 5"),
            check("a/once/torch/limits", measured={"workspace_bytes": 4096}, recorded=(json.dumps(ENTRY),)),
            check("a/once/green.fma", "green_as_planted"),
            check("a/once/red.zeros", "red_as_planted"),
            check("a/once/red.drop-mid", "missed", detail="green at every gate"),
            check("b,gain=1+w/once/reference"),
            check("b,gain=1+w/once/triton/exact", "not_run", detail="triton is not installed"),
        ],
        environment={"libraries": {"torch": "2.13.0", "triton": None}},
        seconds=12.3, seed=5,
    )  # fmt: skip


FACTS = {
    ("a", "once"): KernelFacts(
        "y = x",
        "sums",
        "Gemma",
        {"mid": "bf16", "out": "bf16", "free": None},
        {"fma": "IEEE 754"},
        {"free": "a reason"},
        {"red.zeros": "all zero"},
    )
}


def page(report: Report | None = None) -> Page:
    return Page(html_text(report or a_report(), FACTS))


def test_it_is_well_formed_and_loads_nothing() -> None:
    found = page()
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in found.elements:
        assert not {"src", "srcset", "data", "action", "xlink:href"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
        assert "url(" not in str(attributes.get("style", ""))
    style = "".join(data for tag, data in found.texts if tag == "style")
    assert "prefers-color-scheme: dark" in style
    assert "@import" not in style
    assert "url(" not in style
    (policy,) = found.with_("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_link_has_its_target() -> None:
    found = page()
    targets = [a["id"] for _, a in found.elements if "id" in a]
    assert len(targets) == len(set(targets))
    assert {str(a["href"])[1:] for a in found.with_("a")} <= set(targets)


def test_it_says_what_was_checked_what_failed_and_what_to_run_next() -> None:
    text = page().text()
    assert text.index("not good") < text.index("What failed") < text.index("What did not run")
    failed = text[text.index("3 of 9") - 80 :]
    assert failed.index("a/once/torch/stress") < failed.index("a/once/red.drop-mid")
    assert "3 of 9\nrow 7" in text
    assert "Again: contract run a/once/torch/stress --seed 5" in text
    assert "triton is not installed: 1 check of triton" in text
    assert "contract run --lf --seed 5: everything that was not good" in text
    assert "libraries.torch2.13.0" in text
    assert "libraries.tritonabsent" in text
    assert "0 of 2kernels pass; 1 fail, 1 not run" in text


def test_every_kernel_has_a_page_and_only_a_red_one_is_open() -> None:
    found = page()
    pages = found.with_("details", **{"class": "kernel"})
    assert ["open" in one for one in pages] == [True, False]
    text = found.text()
    for name in ("a/once", "b,gain=1+w/once"):
        assert (
            f"Again: contract run {name}" in text or f"Again: contract run {name} --seed 5" in text
        )


def test_a_kernels_page_has_points_with_power_resources_and_plots() -> None:
    found = page()
    text = found.text()
    for part in (
        "y = x", "Rounds as: Gemma", "midbf1625 %-", "outbf16-100 %", "freenot rounded--a reason", "form=b12.5 %",
        "fmaIEEE 754", "50 %1.50", "workspace bytes", "4,096", "torch: fsm_8077256",
        "shapes: 2 outputs of out (bf16), 1 refused; 2 not finite are left out",
    ):  # fmt: skip
        assert part in text, part
    assert len(found.with_("svg")) == 3
    assert len(found.with_("path", **{"class": "band"})) == 1
    assert len(found.with_("path", **{"class": "dots refused"})) == 1


def test_controls_that_failed_come_first_and_each_says_what_is_planted() -> None:
    text = page().text()
    text = text[text.index("Controls: 2 of 3 as they must be") :]
    places = [text.index(name) for name in ("red.drop-mid", "green.fma", "red.zeros")]
    assert places[0] == min(places)
    for said in ("does not round at mid", "a legal execution of the reference", "all zero"):
        assert said in text


def test_hostile_names_and_details_are_text() -> None:
    name = f"a{HOSTILE.replace('/', '')}/once/torch"
    report = Report(
        [
            check(f"{name}/shapes", "fail", detail=HOSTILE, planted=HOSTILE, compiled=(HOSTILE,), notes=(HOSTILE,)),
            check("a/once/reference", power={HOSTILE: 0.5}),
            check("a/once/torch/limits", measured={HOSTILE: 1}),
            check("a/once/triton/limits", "not_run", detail=HOSTILE),
        ],
        environment={HOSTILE: HOSTILE}, problems=[HOSTILE], notes=[HOSTILE], effort=HOSTILE,
    )  # fmt: skip
    facts = KernelFacts(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE})
    found = Page(html_text(report, {("a", "once"): facts}))
    assert not {tag for tag, _ in found.elements} & {"script", "img"}
    assert found.text().count("<script>alert(1)") > 10
    assert not set(found.text()) & {"\x00", "\x1b", "\ud800"}


def test_a_plot_of_hostile_labels_is_text() -> None:
    found = Sketch(HOSTILE, HOSTILE, HOSTILE)
    found.points = [(1.0, 0.0, 0.0, 0.0, False)]
    report = Report([check("a/once/torch/shapes", sketch=found.text())])
    assert not {tag for tag, _ in page(report).elements} & {"script", "img"}


@pytest.mark.parametrize("sketch", ["", "{", "[]", '{"points": 1}', '{"points": [[1]]}', "null"])
def test_a_damaged_plot_is_none(sketch: str) -> None:
    report = Report([check("a/once/torch/shapes", sketch=sketch)])
    assert page(report).with_("svg") == []


def test_why_there_is_no_plot_is_said() -> None:
    report = Report([check("a/once/torch/shapes", sketch='{"none": "the outputs are sets"}')])
    assert "No plot of shapes: the outputs are sets." in page(report).text()


def test_good_interrupted_and_empty_runs_say_so() -> None:
    good = page(Report([check("a/once/torch/shapes")])).text()
    assert "all good" in good
    assert "Nothing." in good
    assert "contract run --effort nightly" in good
    report = Report([check("a/once/torch/shapes")], interrupted=True)
    text = page(report).text()
    assert "interrupted after 1 checks" in text
    assert "the same command again" in text
    nothing = page(Report()).text()
    assert "nothing ran" in nothing
    assert "contract doctor" in nothing


def test_many_failures_are_cut_and_counted() -> None:
    report = Report([check(f"a/once/t{i}/shapes", "fail") for i in range(IN_FULL + 5)])
    found = page(report)
    assert len(found.with_("article")) == IN_FULL
    assert "5 more: see the kernels below." in found.text()


def timeless(text: str) -> str:
    return re.sub(r"<time>[^<]*</time>", "", text)


def test_the_same_report_is_the_same_bytes_but_for_times() -> None:
    report = a_report()
    text = html_text(report, FACTS)
    assert html_text(a_report(), FACTS) == text
    later = replace(report, seconds=99.0, checks=[replace(c, seconds=7.0) for c in report.checks])
    assert html_text(later, FACTS) != text
    assert timeless(html_text(later, FACTS)) == timeless(text)


def test_a_run_writes_it_with_plots_also_of_what_the_store_has(
    project: Path, contract_run: Run
) -> None:
    names = "scaled/two_step"
    assert contract_run(names)[0] == 0
    code, out, err = contract_run(names, "--html", "a.html")
    assert (code, err) == (0, "")
    # the store had no outputs of the three gates that are drawn
    checks = int(re.search(r"\((\d+) checks from receipts\)", out)[1])  # type: ignore[index]
    first = Path("a.html").read_text()
    found = Page(first)
    assert len(found.with_("svg")) == 3 * 2
    assert "fp32 inside" in found.text().lower()
    # and has them now
    _, out, _ = contract_run(names, "--html", "b.html")
    assert int(re.search(r"\((\d+) checks from receipts\)", out)[1]) == checks + 3  # type: ignore[index]
    # the same bytes from fresh runs, with one worker or two
    texts = []
    for words in (("-j", "1"), ("-j", "2")):
        assert contract_run(names, "--fresh", "--html", "c.html", *words)[0] == 0
        texts.append(timeless(Path("c.html").read_text()))
    assert texts[0] == texts[1]


def test_a_red_run_draws_what_was_refused(project: Path, contract_run: Run) -> None:
    path = project / "contracts" / "scaled.py"
    path.write_text(path.read_text().replace("product = x * scale\n", "product = x * 2.0\n", 1))
    assert contract_run("scaled/two_step/torch/shapes", "--html", "a.html")[0] == 1
    found = Page(Path("a.html").read_text())
    assert found.with_("path", **{"class": "dots refused"})
    assert "contract run scaled/two_step/torch/shapes --effort quick" in found.text()
