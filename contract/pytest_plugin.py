"""The pytest plugin: does nothing until asked.

`pytest --contract` (or `pytest = true` in [tool.contract]) collects the checks of `contract run` as items with the same
ids and outcomes; the fixture `contract_check` is contract.assert_allowed with rows and seed from the options. Nothing
here imports numpy, torch or the registry before it is needed: this module is loaded in every pytest run of the
environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contract.checks import Check
    from contract.results import CheckResult
    from contract.runner import Session

RESULT = "contract_result"
COMPARED = "contract_compared"
#: Required names that no implementation or engine has: they can only fail to run.
ABSENT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contract", "kernel contracts")
    group.addoption(
        "--contract", action="store_true", help="collect the checks of `contract run` as tests"
    )
    group.addoption(
        "--contract-effort", choices=("quick", "default", "nightly"), help="effort of the checks"
    )
    group.addoption("--contract-seed", type=int, help="seed of drawn rows")
    group.addoption(
        "--contract-rows", type=int, help="rows that contract_check judges of each output (all)"
    )
    group.addoption(
        "--contract-fresh", action="store_true", help="ignore finished checks of the store"
    )


def _asked(config: pytest.Config) -> bool:
    if config.getoption("--contract"):
        return True
    from contract.config import read_config
    from contract.errors import ContractError

    try:
        return read_config(config.rootpath).pytest
    except ContractError as error:
        raise pytest.UsageError(str(error)) from None


def _given_files(config: pytest.Config) -> list[Path]:
    """The Python files that pytest was asked for by name."""
    names = [argument.partition("::")[0] for argument in config.args]
    return [config.invocation_params.dir / name for name in names if name.endswith(".py")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks, in the fixed order of `contract run`."""
    if not _asked(config):
        return
    from contract import runner, select, suites
    from contract.config import RunOptions, read_config
    from contract.errors import ContractError

    try:
        settings = read_config(config.rootpath)
        loaded = suites.load(settings)
        suites.adopt(loaded, _given_files(config))
        checks = runner.collect(settings)
        if loaded.chosen:
            # as `contract run FILE`: what these files register
            named = select.Selection(names=tuple(loaded.chosen))
            checks = select.select(checks, named, loaded.chosen)
    except ContractError as error:
        raise pytest.UsageError(" ".join(str(error).split())) from None
    seed = config.getoption("--contract-seed")
    options = RunOptions(
        effort=config.getoption("--contract-effort") or settings.effort,
        seed=settings.seed if seed is None else seed,
        fresh=config.getoption("--contract-fresh"),
        timeout=settings.timeout,
        jobs=1,
        required=settings.require,
        store_root=settings.store_root,
        suites=loaded.payload(),
        files=tuple(loaded.chosen),
    )
    config.stash[ABSENT] = select.unregistered(settings.require, checks)
    judge = Judge(options)
    config.add_cleanup(judge.close)
    for check in checks:
        items.append(
            ContractItem.from_parent(
                session, name=check.id, nodeid=check.id, check=check, judge=judge
            )
        )


class Judge:
    """The judge process of this pytest process, started by the first item that runs."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.session: Session | None = None

    def run(self, check: Check) -> CheckResult:
        if self.session is None:
            from contract.runner import Session

            self.session = Session(self.options)
        return self.session.run_one(check)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


class Red(Exception):
    """A check that is not good."""


class ContractItem(pytest.Item):
    """One check."""

    def __init__(self, *, check: Check, judge: Judge, **more: Any) -> None:
        super().__init__(**more)
        self.check, self.judge = check, judge
        self.extra_keyword_matches.update(check.keywords)

    def runtest(self) -> None:
        from contract.errors import ContractError, SuiteError

        try:
            result = self.judge.run(self.check)
        except SuiteError as error:
            # said once: every further check would start a judge process that ends like this one
            self.session.shouldfail = "no check can be judged"
            raise Red(str(error)) from None
        except ContractError as error:
            raise Red(f"{self.check.id}: {error}") from None
        fields = {
            "id": result.id,
            "outcome": result.outcome,
            "outputs_compared": result.outputs_compared,
        }
        self.user_properties.append((RESULT, json.dumps(fields)))
        required = self.check.implementation in self.judge.options.required
        asked = self.judge.options.required if self.check.engine == "gpu" else ()
        absent = (required and "not installed" in result.detail) or any(
            name in asked for name in ("gpu", f"{self.check.implementation}+gpu")
        )
        if result.outcome == "not_run" and not absent:
            pytest.skip(f"not run: {result.detail}")
        if result.outcome == "not_applicable":
            pytest.skip(f"not applicable: {result.detail}")
        if not result.good or result.outcome == "not_run":
            raise Red(
                f"{result.id}: {result.outcome}\n{result.detail}\nreproduce: {result.reproduce}"
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message without a traceback: it would show the judge, not the kernel."""
        if isinstance(excinfo.value, Red):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.config.rootpath, None, self.check.id


@pytest.fixture
def contract_check(request: pytest.FixtureRequest) -> Iterator[Any]:
    """contract.assert_allowed, with rows and seed from the options; its counts go into the report."""
    from contract.api import assert_allowed

    compared = 0

    def check(kernel: str, out: Any, *positional: Any, **operands: Any) -> Any:
        nonlocal compared
        rows, seed = (
            request.config.getoption("--contract-rows"),
            request.config.getoption("--contract-seed"),
        )
        operands.setdefault("rows", rows)
        operands.setdefault("seed", seed or 0)
        judged = assert_allowed(kernel, out, *positional, **operands)
        compared += judged.compared
        return judged

    yield check
    request.node.user_properties.append((COMPARED, str(compared)))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A required name that nothing has is a failure, as in `contract run`."""
    if session.config.stash.get(ABSENT, []) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line of counts; under xdist on the controller only, from the reports that the workers sent."""
    if hasattr(config, "workerinput"):
        return
    outcomes: dict[str, int] = {}
    compared = checked = 0
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if getattr(report, "when", "call") not in ("call", "teardown"):
                    continue
                if name == RESULT and report.when == "call":
                    fields = json.loads(value)
                    outcomes[fields["outcome"]] = outcomes.get(fields["outcome"], 0) + 1
                    compared += fields["outputs_compared"]
                elif name == COMPARED and report.when == "teardown":
                    checked += int(value)
    for name in config.stash.get(ABSENT, []):
        terminalreporter.write_line(
            f"contract: required {name!r} did not run: nothing has that name"
        )
    if outcomes:
        said = ", ".join(
            f"{count} {name.replace('_', ' ')}" for name, count in sorted(outcomes.items())
        )
        terminalreporter.write_line(
            f"contract: {sum(outcomes.values())} checks: {said}; {compared:,} outputs compared"
        )
    if checked:
        terminalreporter.write_line(f"contract_check: {checked:,} outputs compared")


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.getoption("--contract"):
        return None
    return f"contract: effort {config.getoption('--contract-effort') or 'of the project'}"
