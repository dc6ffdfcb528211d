"""What `contract lint` says: findings, each with its place, its reason and its repair, and how much was looked at."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

#: A comment `# lint: REASON` on the line of a finding says why it is none; its reason is printed in its place.
EXPLAINED = "# lint:"

RULES = {
    "tolerance-below-half-ulp": "a correctly rounded result would be refused",
    "tolerance-admits-zeros": "an output of zeros would pass",
    "shape-never-crosses": "no shape has a second block, or a tail",
    "symmetric-input": "a convention could be the other one, and nothing would show it",
    "red-for-another-reason": "a control would be red also without its fault",
}


@dataclass(frozen=True, order=True)
class Finding:
    """One finding.

    Attributes:
        file, line: where it is repaired; the file relative to the working folder where it lies below it.
        rule: a key of RULES.
        reason: what is wrong, with the numbers it follows from.
        repair: what to write.
        condition: what the finding rests on and was not seen in the source; '' where it holds as it stands.
        explained: the reason that a comment in the source gives; it is then no finding.
    """

    file: str
    line: int
    rule: str
    reason: str
    repair: str
    condition: str = ""
    explained: str = ""

    def text(self) -> str:
        """One line for a terminal."""
        condition = f" (if {self.condition})" if self.condition else ""
        return f"{self.file}:{self.line}: {self.rule}: {self.reason}{condition}; {self.repair}"


@dataclass
class Linted:
    """Findings, and how much was looked at: a lint of nothing is no lint."""

    findings: list[Finding] = field(default_factory=list)
    explained: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, found: Iterable[Finding]) -> None:
        """Add findings; those whose line carries a reason are kept apart."""
        for finding in found:
            reason = explanation(finding.file, finding.line)
            if reason:
                self.explained.append(replace(finding, explained=reason))
            else:
                self.findings.append(finding)

    @property
    def looked_at(self) -> int:
        """How many comparisons, calls, contracts and controls were looked at."""
        return sum(count for what, count in self.counts.items() if what != "files")

    def exit_code(self) -> int:
        """1 with findings, 5 where nothing was looked at, else 0."""
        if self.findings:
            return 1
        return 0 if self.looked_at else 5

    def lines(self) -> list[str]:
        """The findings by file and line, then the notes and the summary."""
        shown = [finding.text() for finding in sorted(set(self.findings))]
        shown += [
            f"{one.file}:{one.line}: {one.rule}, explained: {one.explained}"
            for one in sorted(set(self.explained))
        ]
        return [*dict.fromkeys(shown), *self.notes, self.summary()]

    def summary(self) -> str:
        """Counts of what was looked at, and of what was found."""
        looked = ", ".join(f"{count:,} {what}" for what, count in self.counts.items() if count)
        number = len(set(self.findings))
        return (
            f"SUMMARY lint: {looked or 'nothing to lint'}: {number} finding{'s' * (number != 1)},"
            f" {len(set(self.explained))} explained"
        )

    def as_json(self) -> dict[str, Any]:
        """The whole lint as JSON values."""
        return {
            "schema": 1,
            "findings": [vars(one) for one in sorted(set(self.findings))],
            "explained": [vars(one) for one in sorted(set(self.explained))],
            "looked_at": dict(sorted(self.counts.items())),
            "notes": self.notes,
            "exit_code": self.exit_code(),
        }


def short(path: str | Path) -> str:
    """The path relative to the working folder where it lies below it."""
    path, here = os.path.realpath(path), os.path.realpath(os.getcwd()) + os.sep
    return path.removeprefix(here)


@cache
def _source(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def explanation(file: str, line: int) -> str:
    """The reason that a comment on that line, or on a line of its own above it, gives; '' where it gives none."""
    source = _source(os.path.realpath(file))
    own = source[line - 1] if 0 < line <= len(source) else ""
    above = source[line - 2].strip() if 1 < line <= len(source) else ""
    for text in (own, above if above.startswith(EXPLAINED) else ""):
        if EXPLAINED in text:
            return text.partition(EXPLAINED)[2].strip()
    return ""
