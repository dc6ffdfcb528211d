"""Receipts: finished checks in the store, under the hash of all they depend on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from contract import captured, device_files, device_tools, recordbook, registry, sources
from contract.availability import NVCC
from contract.checks import Check
from contract.config import RunOptions
from contract.engines import GPU, HOST
from contract.engines.devices import identity
from contract.environment import environment_key
from contract.results import CheckResult
from contract.rowbook import RowBook
from contract.store import Store, atomic_write_text, digest

#: Outcomes that a rerun may take from the store: what failed or did not run is judged again.
KEPT = frozenset({"pass", "red_as_planted", "green_as_planted", "not_applicable"})


def packages_of(modules: tuple[str, ...]) -> tuple[str, ...]:
    """The top packages of a suite's modules; of our own suite the folders below `contract`."""
    found = set()
    for module in modules:
        parts = module.split(".")
        found.add(".".join(parts[:2]) if parts[0] == "contract" and len(parts) > 1 else parts[0])
    if any(name.startswith("contract.") for name in found):
        found |= {"contract.kernels", "contract.references", "contract.controls"}
    return tuple(sorted(found))


class Keys:
    """Keys of checks under the options of one run."""

    def __init__(self, options: RunOptions):
        self.options = options
        self.base = {
            "framework": sources.framework_hash(),
            "environment": environment_key(),
            "effort": options.effort,
            "seed": options.seed,
            "device": options.device,
        }

    def key(self, check: Check) -> str:
        """Hash of sources, environment, check, inputs, effort and seed."""
        return digest(
            {
                **self.base,
                "check": check.id,
                "requires": list(check.requires),
                **({"gpu": identity()} if check.engine == GPU else {}),
                **({"tools": device_tools.tools()} if check.engine != HOST else {}),
                **depends(check, self.options.store_root),
            }
        )


def files_of(check: Check) -> tuple[Path, ...]:
    """Every file whose source the result of a check depends on."""
    return _reached_by(check).files


class _Reached(NamedTuple):
    """What a check rests on: the hash of all sources, their files, the installed modules that they import, and the hash of
    each module."""

    digest: str
    files: tuple[Path, ...]
    installed: tuple[str, ...]
    sources: Mapping[str, str]


def _reached_by(check: Check) -> _Reached:
    """`closure_of` the modules of its contract's reference and declaration, and of its target."""
    home = registry.get(check.spec["name"]).reference.__module__
    modules = {home, check.module, *_declared_in(check.spec["name"])}
    return _reached(tuple(sorted(m for m in modules if m)), device_files.count())


@cache
def _reached(modules: tuple[str, ...], declared: int) -> _Reached:
    """`declared`: `device_files.count()`, as what is declared later belongs to it, too."""
    closure, installed = closure_of(modules)
    homes = sources.module_files(closure)
    reached, files = dict(closure), set(homes.values())
    for name, home in homes.items():
        mark = f"{name}:"
        beside = (home.parent / one.removeprefix(mark) for one in closure if one.startswith(mark))
        files |= {path.resolve() for path in beside}
        for path in device_files.of(home):
            files.add(path)
            place = mark + os.path.relpath(path, home.parent)
            reached[place] = sources.file_hash(path) if path.is_file() else sources.ABSENT
    reached = dict(sorted(reached.items()))
    return _Reached(digest(reached), tuple(sorted(files)), installed, reached)


def forget() -> None:
    """Look at all sources anew."""
    for function in (closure_of, _reached, _finder):
        function.cache_clear()


def depends(check: Check, root: Path) -> dict[str, Any]:
    """Hashes of every source that the result of a check depends on."""
    reached = _reached_by(check)
    found: dict[str, Any] = {"sources": reached.digest}
    found["distributions"] = distributions((*check.requires, *reached.installed))
    if check.gate == "limits":
        folder = recordbook.folder_of(check.module)
        path = folder / f"{check.spec['name']}.json" if folder else None
        found["record"] = path.read_bytes().hex() if path and path.is_file() else ""
    if check.gate == "shapes":
        found["captured"] = captured.fingerprint(root, f"{check.kernel}/{check.profile}")
    if check.gate == "stress":
        found["rows"] = RowBook(root).text(check.module, check.spec["name"])
    return found


def named(check: Check) -> dict[str, dict[str, str]]:
    """The hashes of `depends` one by one: "sources" of every module, "distributions" of what they import."""
    reached = _reached_by(check)
    return {
        "sources": dict(reached.sources),
        "distributions": distributions((*check.requires, *reached.installed)),
    }


def distributions(modules: tuple[str, ...]) -> dict[str, str]:
    """Hash of every distribution that holds one of these modules, under its name."""
    found = {}
    for module in modules:
        if module == NVCC:
            # its version is part of the environment
            continue
        top = module.partition(".")[0]
        if (one := _distribution(top)) != sources.ABSENT:
            found[top] = one
            continue
        # the module `yaml` is of the distribution PyYAML
        for name in _holders().get(top, [top]):
            found[name] = _distribution(name)
    return found


# Once per process: what is imported does not change when a distribution is replaced.
_distribution = cache(sources.distribution_hash)


@cache
def _holders() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


#: Installed modules whose versions are part of the environment, or that are this framework.
_KNOWN = frozenset(
    {"contract", "torch", "numpy", "hypothesis", "mpmath", "pytest", "rich", "typing_extensions"}
)


# Once per process, as the closures below.
_finder = cache(sources.Finder)


@cache
def closure_of(modules: tuple[str, ...]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Hashes of the sources that these modules reach, and the installed modules that they import."""
    outside: set[str] = set()
    reached = sources.closure(
        modules, packages_of(modules), own=True, outside=outside, finder=_finder()
    )
    return reached, tuple(sorted(outside - _KNOWN))


def _declared_in(name: str) -> tuple[str, ...]:
    """The module that registered a contract (its kernel file), as far as the registry knows."""
    return (registry.origin(name),)


def remember(store: Store, key: str, result: CheckResult) -> None:
    """Store a finished check; what failed is stored too (for --lf), but not taken as done."""
    store.put(key, vars(result))


def usable(record: Mapping[str, Any] | None) -> bool:
    """Whether a stored check may be taken instead of judging it again."""
    return record is not None and record.get("outcome") in KEPT


def last_failed(store: Store) -> set[str]:
    """Ids that were not good when they last ran."""
    return {name for name, outcome in _last(store).items() if outcome not in (*KEPT, "not_run")}


def note_last(store: Store, results: Mapping[str, CheckResult]) -> None:
    """Remember the outcome of each check that ran, for --lf."""
    outcomes = {**_last(store), **{name: result.outcome for name, result in results.items()}}
    atomic_write_text(
        store.root / "last.json",
        json.dumps({"schema": 1, "outcomes": outcomes}, sort_keys=True) + "\n",
    )


def _last(store: Store) -> dict[str, str]:
    try:
        data = json.loads((store.root / "last.json").read_text())
        return {str(k): str(v) for k, v in data["outcomes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


__all__ = ["KEPT", "Keys", "depends", "last_failed", "packages_of", "remember", "usable"]
