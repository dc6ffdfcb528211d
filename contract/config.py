"""What the user sets: [tool.contract] of the nearest pyproject.toml, and the options of one run.

    [tool.contract]
    suites = ["contracts/", "mypackage.contracts"]   # folders, .py files or modules
    pythonpath = ["."]                               # put on sys.path, relative to this file
    require = ["torch"]                              # implementations or engines that must run
    pytest = false                                   # collect the checks in every pytest run
    seed = 0
    effort = "default"                               # quick, default or nightly
    timeout = 60                                     # seconds without a finished call

The reader is strict: a key that nobody reads is a setting that its author believes in.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.errors import UsageError

EFFORTS = ("quick", "default", "nightly")
DEVICES = ("cpu",)
# Longer than any single call of the catalogue; a hang is seen after one minute.
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_MEMORY_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Config:
    """The settings of one project.

    Attributes:
        path: the pyproject.toml they come from; None where there is none.
        root: the folder that relative paths mean: that of `path`, else the working folder.
        suites: folders and files (relative to root) and modules to load.
        pythonpath: folders put on sys.path, in the parent and in every worker.
        require: implementations or engines that must run.
        pytest: whether a plain pytest run collects the checks.
        seed, effort, timeout: defaults of the options of the same name; timeout in seconds.
    """

    path: Path | None
    root: Path
    suites: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = (".",)
    require: tuple[str, ...] = ()
    pytest: bool = False
    seed: int = 0
    effort: str = "default"
    timeout: float = DEFAULT_TIMEOUT_S

    @property
    def store_root(self) -> Path:
        """Folder of the store: `.contract` beside the pyproject.toml, else in the user's cache."""
        if self.path is not None:
            return self.root / ".contract"
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "kernel-contract"


@dataclass(frozen=True)
class RunOptions:
    """The options of one run.

    Attributes:
        effort, seed: how much is judged, and of which rows.
        fresh: ignore finished checks of the store.
        exitfirst: stop at the first check that is not good.
        last_failed: run only what was not good in the store's last result; all where nothing was.
        device: where the host engine's tensors lie: 'cpu'; the engine gpu takes torch's GPU.
        timeout: seconds without a finished call after which a worker is killed.
        memory: bytes of address space of one worker.
        jobs: worker processes at the same time.
        update_records: write the measured resources and budgets instead of comparing them.
        required: names of implementations or engines whose not_run is a failure.
        store_root: folder of the store.
        suites: what `contract.suites.reload` needs to load the same suites in a worker.
        sketches: whether outputs are sampled for the plots of a report.
        files: suites named on the command line, which a replay must name again.
    """

    effort: str = "default"
    seed: int = 0
    fresh: bool = False
    exitfirst: bool = False
    last_failed: bool = False
    device: str = "cpu"
    timeout: float = DEFAULT_TIMEOUT_S
    memory: int = DEFAULT_MEMORY_BYTES
    jobs: int = field(default_factory=lambda: min(2, os.cpu_count() or 1))
    update_records: bool = False
    required: tuple[str, ...] = ()
    store_root: Path = field(default_factory=lambda: Path(".contract"))
    suites: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    sketches: bool = False


def read_config(folder: Path | None = None) -> Config:
    """The settings that hold in `folder` (the working folder where absent).

    The nearest pyproject.toml with a table [tool.contract] counts; where none has one, the nearest
    pyproject.toml still says where the store lies.

    Raises:
        UsageError: a file that is no TOML, an unknown key or a value of the wrong type.
    """
    start = (folder or Path.cwd()).resolve()
    nearest: Path | None = None
    for parent in (start, *start.parents):
        path = parent / "pyproject.toml"
        if not path.is_file():
            continue
        nearest = nearest or path
        tool = _parse(path).get("tool", {})
        if isinstance(tool, dict) and "contract" in tool:
            return Config(path, parent, **_checked(path, tool["contract"]))
    return Config(nearest, nearest.parent if nearest else start)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}; repair that line") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _texts(value: Any) -> tuple[str, ...] | None:
    whole = isinstance(value, list) and all(isinstance(item, str) and item for item in value)
    return tuple(value) if whole else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _natural(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _effort(value: Any) -> str | None:
    return value if value in EFFORTS else None


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else None


# Key -> (what it must be, reader that returns None where it is not).
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "suites": ('a list of paths or modules, e.g. ["contracts/"]', _texts),
    "pythonpath": ('a list of folders, e.g. ["."]', _texts),
    "require": ('a list of implementations or engines, e.g. ["torch"]', _texts),
    "pytest": ("true or false", _flag),
    "seed": ("a whole number >= 0", _natural),
    "effort": ("one of " + ", ".join(f'"{effort}"' for effort in EFFORTS), _effort),
    "timeout": ("a number of seconds > 0", _seconds),
}


def _checked(path: Path, table: Any) -> dict[str, Any]:
    """The values of the table by key, or a UsageError naming file, key and repair."""
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.contract is {table!r}; make it a table, [tool.contract]")
    values = {}
    for key, value in table.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
            repair = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(_KEYS)}"
            raise UsageError(f"{path}: [tool.contract] has no key {key!r}; {repair}")
        wanted, reader = _KEYS[key]
        values[key] = reader(value)
        if values[key] is None:
            raise UsageError(f"{path}: [tool.contract] {key} = {value!r}; it must be {wanted}")
    return values
