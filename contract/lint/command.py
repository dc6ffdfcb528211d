"""`contract lint`: the files of a lint, and all rules on them."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from contract import autocontrols, formats, registry, suites
from contract.checks import collect_checks
from contract.config import Config, RunOptions
from contract.declare import Contract
from contract.errors import UsageError
from contract.lint import blocks, negatives, operands, plants, rows, tolerances
from contract.lint.findings import Linted
from contract.lint.places import contract_file
from contract.lint.reading import Module, read
from contract.store import atomic_write_json

#: Functions that declare something of a suite.
DECLARING = ("register", "implementation", "red", "green")
#: Folders whose files are tests or what tests share: read, never loaded.
TESTS = ("tests", "test")
#: Folders that hold nobody's sources.
SKIPPED = ("__pycache__", "build", "dist", "node_modules", "site-packages")


def run(arguments: argparse.Namespace, config: Config) -> int:
    """Print what is found; returns the exit code: 0 nothing, 1 something, 5 nothing was read."""
    found = lint(config, arguments.paths)
    print("\n".join(found.lines()))
    if not found.looked_at:
        print(
            "contract: nothing to lint: no comparison, no contract and no planted control in what was read",
            file=sys.stderr,
        )
    if arguments.json:
        atomic_write_json(arguments.json, found.as_json())
    return found.exit_code()


def lint(config: Config, paths: Sequence[str]) -> Linted:
    """Lint files and folders; the project's tests and suites where none is named.

    Raises:
        UsageError: a path that is not there, or a file that is no Python.
        SuiteError, DeclarationError: a suite that cannot be loaded.
    """
    found = Linted()
    loaded: suites.Loaded | None = None
    if paths:
        files = [file for path in paths for file in _files(Path(path))]
        modules = [read(file) for file in files]
        declaring = [m.file for m in modules if _declares(m) and not _is_tests(Path(m.file), paths)]
        if declaring:
            loaded = suites.load(config, declaring)
    else:
        loaded = _load_project(config)
        files = [*_test_files(config), *_registered_below(config.root)]
        modules = [read(file) for file in files]
    _lint_tests(found, modules, config)
    if loaded is not None:
        named = modules if not paths else [m for m in modules if m.file in declaring]
        _lint_suites(found, {os.path.realpath(m.file) for m in named}, loaded, config)
    return found


# -- files


def _files(path: Path) -> list[Path]:
    """The Python files of a path, sorted."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if path.is_file():
        return [path]
    return [
        file
        for file in sorted(path.rglob("*.py"))
        if not any(part in SKIPPED or part.startswith(".") for part in file.relative_to(path).parts)
        # a folder may have such a name; a link to nothing is no source
        and file.is_file()
    ]


def _is_tests(file: Path, paths: Sequence[str]) -> bool:
    """Whether it is read only: pytest's own, or below a folder of tests. A file that is named itself is meant."""
    if suites.is_test_file(file):
        return True
    if any(os.path.realpath(path) == os.path.realpath(file) for path in paths):
        return False
    parents = Path(os.path.realpath(file)).parents
    return any(folder.name in TESTS or (folder / "conftest.py").is_file() for folder in parents)


def _declares(module: Module) -> bool:
    """Whether the file declares something of a suite, as far as its source says."""
    names = {f"contract.{name}" for name in DECLARING}
    names |= {f"contract.registry.{name}" for name in DECLARING}
    return any(
        isinstance(node, ast.Call) and module.dotted(node.func) in names
        for node in ast.walk(module.tree)
    )


def _load_project(config: Config) -> suites.Loaded | None:
    """The suites of the project; None where there are none, which its tests may do without."""
    try:
        return suites.load(config)
    except suites.NothingToJudge:
        return None


def _test_files(config: Config) -> list[Path]:
    """The files of pytest's testpaths, or of a folder `tests`."""
    names = ["tests"]
    if config.path is not None:
        tool: Any = tomllib.loads(config.path.read_text(encoding="utf-8")).get("tool", {})
        names = tool.get("pytest", {}).get("ini_options", {}).get("testpaths", names)
    folders = [config.root / name for name in names if (config.root / name).exists()]
    return [file for folder in folders for file in _files(folder)]


def _registered_below(root: Path) -> list[Path]:
    """The files below a folder that declare what is registered."""
    places = [contract_file(contract) for contract in registry.contracts().values()]
    places += [item.place.rpartition(":")[0] for item in registry.implementations()]
    places += [control.place.rpartition(":")[0] for control in registry.controls()]
    top = os.path.realpath(root) + os.sep
    real = {os.path.realpath(place) for place in places if place}
    return [
        Path(file)
        for file in sorted(real)
        if file.startswith(top) and not any(part in SKIPPED for part in Path(file).parts)
    ]


# -- rules


def _lint_tests(found: Linted, modules: Sequence[Module], config: Config) -> None:
    found.counts["files"] += len(modules)
    reach = _Reach(config)
    for module in modules:
        for name, (one, count) in (
            ("comparisons with a tolerance", tolerances.findings(module, reach)),
            ("expected refusals", negatives.findings(module)),
        ):
            found.add(one)
            found.counts[name] += count
    one, count = operands.findings(modules)
    found.add(one)
    found.counts["calls of functions under test"] += count


def _lint_suites(found: Linted, files: set[str], loaded: suites.Loaded, config: Config) -> None:
    for contract in registry.contracts().values():
        own = os.path.realpath(contract_file(contract)) in files
        items = [i for i in registry.implementations(contract.name) if _lies_in(i.place, files)]
        if own or items:
            found.counts["contracts"] += own
            one, count = blocks.findings(contract, items, own=own)
            found.add(one)
            found.counts["block sizes"] += count
        if own:
            one, count = rows.findings(contract)
            found.add(one)
            found.counts["conventions of operands"] += count
    places = {
        (c.kernel, c.profile, f"{c.colour}.{c.name}")
        for c in registry.controls()
        if _lies_in(c.place, files)
    }
    checks = [
        check
        for check in collect_checks(automatic=False)
        if check.target == "control" and (check.spec["name"], check.profile, check.name) in places
    ]
    if checks:
        _lint_controls(found, checks, loaded, config)


def _lint_controls(
    found: Linted, checks: Iterable[Any], loaded: suites.Loaded, config: Config
) -> None:
    from contract.judge_process import Judge, settle

    settle()
    options = RunOptions(seed=config.seed, timeout=config.timeout, suites=loaded.payload())
    process = Judge({**vars(options), "effort": "quick", "store_root": None}, lambda message: None)
    try:
        asked = plants.findings(process, list(checks))
    finally:
        process.close()
    found.add(asked.findings)
    found.counts["planted red controls"] += asked.called
    if asked.not_called:
        found.notes.append(
            f"note: {asked.not_called} planted red controls were not called: of another engine than the host's, or of a"
            " package that is not here"
        )


def _lies_in(place: str, files: set[str]) -> bool:
    return os.path.realpath(place.rpartition(":")[0]) in files


class _Reach:
    """The largest magnitude of a contract's outputs on its smallest typical rows; suites are loaded when one is asked for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.known: dict[str, float | None] = {}
        self.loaded = False

    def __call__(self, name: str) -> float | None:
        if name not in self.known:
            if not self.loaded:
                self.loaded = True
                _load_project(self.config)
            contract = registry.contracts().get(name)
            self.known[name] = None if contract is None else _largest(contract)
        return self.known[name]


def _largest(contract: Contract) -> float | None:
    import numpy as np

    from contract.case import kernels_of
    from contract.inputs import shape_list, typical_case

    largest = 0.0
    for kernel in kernels_of(contract):
        for turn, shape in enumerate(shape_list(kernel, "quick")):
            outputs = autocontrols.nominal(kernel, typical_case(kernel, shape, 0, turn))
            for operand in kernel.outputs():
                values = formats.decode(outputs[operand.name], kernel.format(operand))
                finite = np.abs(values[np.isfinite(values)])
                largest = max(largest, float(finite.max()) if finite.size else 0.0)
    return largest or None
