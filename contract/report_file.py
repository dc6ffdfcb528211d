"""JSON reports as `contract run --json` writes them, read back: what is damaged or foreign is refused, never skipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from contract.errors import UsageError
from contract.results import GOOD, OUTCOMES


@dataclass(frozen=True)
class StoredCheck:
    """A check of a report; fields as those of contract.results.CheckResult, `functions` as in contract.report."""

    id: str
    outcome: str
    outputs_compared: int
    detail: str
    from_receipt: bool
    gate: str | None = None
    one_value_share: float | None = None
    widest_ulp: float | None = None
    reproduce: str = ""
    required: bool = False
    seconds: float = 0.0
    power: Mapping[str, float] = field(default_factory=dict)
    bits: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    functions: tuple[Mapping[str, Any], ...] = ()

    @property
    def good(self) -> bool:
        """Neither red, nor missing where it is required."""
        return self.outcome in GOOD or (self.outcome == "not_run" and not self.required)

    @property
    def ran(self) -> bool:
        return self.outcome not in ("not_run", "not_applicable")


@dataclass(frozen=True)
class StoredReport:
    """A report: its checks by id, what it was run in, and what was wrong with the run as a whole."""

    path: Path
    checks: Mapping[str, StoredCheck]
    environment: Mapping[str, Any]
    problems: tuple[str, ...]
    from_receipts: int


_NUMBER = (int, float)
#: What ids are made of (docs/words.md).
_ID = re.compile(r"[A-Za-z0-9_.,=+/-]+")
_KINDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "outcome": (str,),
    "outputs_compared": (int,),
    "detail": (str,),
    "from_receipt": (bool,),
    "gate": (str, type(None)),
    "one_value_share": (*_NUMBER, type(None)),
    "widest_ulp": (*_NUMBER, type(None)),
    "reproduce": (str,),
    "required": (bool,),
    "seconds": _NUMBER,
    "power": (dict,),
    "bits": (dict,),
    "resources": (dict,),
    "functions": (list,),
}
#: Those that every check has.
_ALWAYS = ("id", "outcome", "outputs_compared", "detail", "from_receipt")
#: Mapping of a check -> the types of its values.
_VALUES: dict[str, tuple[type, ...]] = {"power": _NUMBER, "bits": (str,), "resources": (int,)}


def read_report(path: Path) -> StoredReport:
    """The report in a file.

    Raises:
        UsageError: the file cannot be read, is no JSON, or no report of schema 1; the message says where.
    """

    def refuse(what: str) -> NoReturn:
        raise UsageError(f"{path}: {what}; give a file that `contract run --json FILE` wrote")

    def constant(name: str) -> NoReturn:
        refuse(f"holds {name}, which is no JSON")

    try:
        whole = json.loads(path.read_text(encoding="utf-8"), parse_constant=constant)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name a JSON report") from error
    except (ValueError, RecursionError) as error:
        refuse(f"is no JSON ({error})")
    if not isinstance(whole, dict) or "schema" not in whole or "checks" not in whole:
        refuse("is no report: it has no schema and checks")
    if type(whole["schema"]) is not int or whole["schema"] != 1:
        refuse(f"has schema {whole['schema']!r}; this version reads 1")
    if not isinstance(whole["checks"], list):
        refuse("checks is not a list")
    environment, summary = whole.get("environment"), whole.get("summary")
    if not isinstance(environment, dict) or not isinstance(summary, dict):
        refuse("has no environment and summary")
    checks: dict[str, StoredCheck] = {}
    for place, raw in enumerate(whole["checks"]):
        check = _check(raw, lambda what, at=place: refuse(f"checks[{at}] {what}"))  # type: ignore[misc]
        if check.id in checks:
            refuse(f"checks[{place}] has the id of another: {check.id!r}")
        checks[check.id] = check
    problems = whole.get("problems", [])
    if not isinstance(problems, list) or not all(
        isinstance(one, dict) and {type(one.get("kind")), type(one.get("text"))} == {str}
        for one in problems
    ):
        refuse("problems is not a list of kind and text")
    receipts = sum(check.from_receipt for check in checks.values())
    said = tuple(f"{one['kind']}: {one['text']}" for one in problems)
    return StoredReport(path, checks, environment, said, receipts)


def _check(raw: Any, refuse: Callable[[str], NoReturn]) -> StoredCheck:
    if not isinstance(raw, dict):
        refuse("is no object")
    missing = [name for name in _ALWAYS if name not in raw]
    if missing:
        refuse(f"has no {', '.join(missing)}")
    fields = {name: value for name, value in raw.items() if name in _KINDS}
    for name, value in fields.items():
        if type(value) not in _KINDS[name]:
            refuse(f"has {name} {value!r}")
        if name in _VALUES and not all(type(one) in _VALUES[name] for one in value.values()):
            refuse(f"has {name} {value!r}")
    if not _ID.fullmatch(fields["id"]):
        refuse(f"has id {fields['id']!r}")
    if fields["outputs_compared"] < 0:
        refuse(f"has outputs_compared {fields['outputs_compared']}")
    if fields["outcome"] not in OUTCOMES:
        refuse(f"has outcome {fields['outcome']!r}; outcomes are {', '.join(OUTCOMES)}")
    functions = fields.get("functions", [])
    for one in functions:
        if not _is_function(one):
            refuse(f"has a function {one!r}")
    return StoredCheck(**{**fields, "functions": tuple(functions)})


def _is_function(one: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("function"), str):
        return False
    architectures = one.get("architectures")
    return isinstance(architectures, dict) and all(
        isinstance(counts, dict) and all(type(count) is int for count in counts.values())
        for counts in architectures.values()
    )
