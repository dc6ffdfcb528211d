"""A report as JUnit XML, for the services that read it: a test case for each check."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from contract.markup import printable
from contract.report import counts, reproduce, run_problems, words
from contract.results import CheckResult, Report


def to_xml(report: Report) -> str:
    """The document. Checks that are not applicable are left out, as they are from the counts.

    Problems that belong to no check are failed cases of their own: a red run never reads as green.
    """
    passed, failed, skipped = counts(report)
    troubles = run_problems(report)
    attributes = {
        "name": "contract",
        "tests": str(passed + failed + skipped + len(troubles)),
        "failures": str(failed + len(troubles)),
        "errors": "0",
        "time": f"{report.seconds:.3f}",
    }
    suites = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(suites, "testsuite", {**attributes, "skipped": str(skipped)})
    for check in report.checks:
        if check.outcome != "not_applicable":
            _add_check(suite, check)
    for number, (kind, text) in enumerate(troubles, 1):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": "contract", "name": f"{kind} {number}", "time": "0.000"},
        )
        _add_outcome(case, "failure", kind, text, text)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_check(suite: ElementTree.Element, check: CheckResult) -> None:
    classname = f"{check.kernel}/{check.profile}"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "classname": printable(classname),
            "name": printable(check.id.removeprefix(classname + "/")),
            "time": f"{check.seconds:.3f}",
        },
    )
    first = check.detail.strip().split("\n")[0]
    if not check.good:
        message = f"{words(check.outcome)}: {first}" if first else words(check.outcome)
        text = f"{check.id}\n{check.detail}\nreproduce: {reproduce(check)}"
        _add_outcome(case, "failure", check.outcome, message, text)
    elif check.outcome == "not_run":
        _add_outcome(case, "skipped", check.outcome, first or "not run", check.detail)


def _add_outcome(case: ElementTree.Element, tag: str, kind: str, message: str, text: str) -> None:
    element = ElementTree.SubElement(case, tag, {"type": kind, "message": printable(message)})
    element.text = printable(text)


def write_junit(report: Report, path: Path) -> None:
    """Write the document, all or nothing."""
    from contract.store import atomic_write_text

    atomic_write_text(path, to_xml(report))
