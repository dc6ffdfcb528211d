"""Loading suites: the modules and files whose import registers contracts and what belongs to them.

In this order: the entry points of the group `contract.suites`, sorted by name; `[tool.contract]
suites`; the files on the command line. Of a package every submodule is imported, recursively and
sorted, then the packages that its `SUITE_PACKAGES` names. A file is imported under a name made from
its path, the same in every process and never `__main__`, so that a worker finds the functions that
the parent registered.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from contract import registry
from contract.config import Config
from contract.declare import Contract, Control, Implementation
from contract.errors import SuiteError, UsageError
from contract.exits import exit_refused

GROUP = "contract.suites"
_FRAMEWORK = str(Path(__file__).parent)
_PREFIX = "contract_suite_"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


class NothingToJudge(UsageError):
    """All suites are loaded and no contract is registered."""


@dataclass(frozen=True)
class Target:
    """An implementation or control, by what tells it from the others of its kernel.

    Attributes:
        kernel, profile: what it claims; profile '' is the kernel's first.
        name: the implementation's, or 'red.NAME' or 'green.NAME'.
        parameters: enumerated parameter -> values that it serves, as sorted pairs.
    """

    kernel: str
    profile: str
    name: str
    parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Registered:
    """What one file or module registered: names of contracts, and targets."""

    contracts: frozenset[str] = frozenset()
    implementations: frozenset[Target] = frozenset()
    controls: frozenset[Target] = frozenset()

    def __or__(self, other: Registered) -> Registered:
        return Registered(
            self.contracts | other.contracts,
            self.implementations | other.implementations,
            self.controls | other.controls,
        )


@dataclass
class Loaded:
    """What was loaded, in order.

    Attributes:
        modules: names of modules imported as suites.
        files: absolute paths of files imported as suites.
        sys_path: absolute folders that were put on sys.path.
        missing: module of a `clients` package -> the third-party module that it could not import.
        chosen: argument of the command line that is a file or folder -> what it registered.
        brought: file of the command line -> modules that it imported, that declare something and are not named themselves.
        names: name under which something else imported one of `files` -> that file.
    """

    modules: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    sys_path: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Registered] = field(default_factory=dict)
    brought: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """What `reload` needs, as JSON values."""
        return {
            "modules": self.modules,
            "files": self.files,
            "sys_path": self.sys_path,
            "names": self.names,
        }


# Module -> what its first import registered; a second `load` in one process imports nothing again.
_registered: dict[str, Registered] = {}
# Module -> the modules that declared something while it was imported.
_declaring: dict[str, frozenset[str]] = {}


def load(config: Config, names: Iterable[str] = ()) -> Loaded:
    """Load every suite of the project, and those of `names` that are files or folders.

    Raises:
        SuiteError: a suite that cannot be imported, as one line `suite FILE:LINE: Kind: message`.
        DeclarationError: an implementation or control of a kernel that no suite declares.
        NothingToJudge: no suite declares a contract.
    """
    loaded = Loaded()
    _extend_sys_path(
        loaded, [str((config.root / folder).resolve()) for folder in config.pythonpath]
    )
    for _, module in sorted({(point.name, point.module) for point in entry_points(group=GROUP)}):
        _load_module(loaded, module)
    for suite in config.suites:
        path = config.root / suite
        if path.exists() or suite.endswith(".py"):
            _load_path(loaded, path)
        elif _MODULE.match(suite):
            _load_module(loaded, suite)
        else:
            raise SuiteError(
                f"{config.path}: [tool.contract] suites: {suite!r} does not exist;"
                " give a folder, a .py file or a module"
            )
    for name in names:
        if is_file(name):
            loaded.chosen[name] = _load_path(loaded, Path(name))
    _note_brought(loaded)
    registry.check()
    if not registry.contracts():
        raise NothingToJudge(
            "nothing to judge: no suite declares a contract; `contract init` writes a"
            " first one, [tool.contract] suites or a FILE argument names more"
        )
    return loaded


def _note_brought(loaded: Loaded) -> None:
    """Note what files of the command line brought in by their imports: it counts as theirs, and is judged with them."""
    named: list[Path] = []
    for name in loaded.chosen:
        path = Path(name).resolve()
        named += [path] if path.is_file() else _python_files(path)
    own = {_module_of(path) for path in named}
    for path in named:
        others = sorted(_declaring.get(module_name(path), frozenset()) - own)
        if others:
            loaded.brought[_short(str(path))] = others


def reload(payload: Mapping[str, Any]) -> None:
    """Load in this process what `Loaded.payload` of another one lists, and is not loaded."""
    loaded = Loaded()
    _extend_sys_path(loaded, payload["sys_path"])
    before = len(_registered)
    for module in payload["modules"]:
        # a worker is forked from a server that has loaded them: asking again costs more than the fork
        if module not in _registered or module not in sys.modules:
            _import(loaded, module, partial(importlib.import_module, module))
    for file in payload["files"]:
        _load_file(loaded, Path(file))
    for name, file in payload["names"].items():
        known = _module_of(Path(file))
        if known is not None:
            # checks name the module that declares their target as the process that collected them does
            sys.modules.setdefault(name, sys.modules[known])
    if len(_registered) != before:
        registry.check()


def adopt(loaded: Loaded, given: Iterable[Path]) -> None:
    """Add the files of modules that something else imported (pytest) and that registered something.

    Those of `given` that did become `chosen`, as if they were named on the command line.
    """
    wanted = {path.resolve() for path in given}
    names = {item.module for item in registry.implementations()}
    names |= {control.module for control in registry.controls()}
    names |= {contract.reference.__module__ for contract in registry.contracts().values()}
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if name in loaded.modules and name in _registered:
            # a suite that we imported by this name ourselves
            continue
        # by its path: the name that pytest gave it is known to this process only
        if name in loaded.modules:
            loaded.modules.remove(name)
        if str(path) not in loaded.files:
            loaded.files.append(str(path))
        if not name.startswith(_PREFIX):
            loaded.names[name] = str(path)
            _keep_root(loaded, name, path)
        if path in wanted:
            loaded.chosen[str(path)] = _of_module(name)


def _keep_root(loaded: Loaded, name: str, path: Path) -> None:
    """Keep on the path of other processes the folder from which a module was imported: its siblings are found there."""
    stem = path.parent if path.name == "__init__.py" else path
    root = next(iter(stem.parents[name.count(".") :]), None)
    # not the framework's own: its kernels/ would hide other people's package
    if root in (None, Path(_FRAMEWORK).parent) or str(root) in loaded.sys_path:
        return
    if str(root) in map(os.path.realpath, sys.path):
        loaded.sys_path.append(str(root))


def is_file(name: str) -> bool:
    """Whether the name means a file or folder: a kernel wins over a folder of its name."""
    if name.endswith(".py"):
        return True
    return re.split("[/,]", name)[0] not in registry.contracts() and Path(name).exists()


def module_name(path: Path) -> str:
    """The name under which the file is imported, in every process the same."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest}"


def _extend_sys_path(loaded: Loaded, folders: Iterable[str]) -> None:
    for place, folder in enumerate(folders):
        loaded.sys_path.append(folder)
        if folder not in sys.path:
            sys.path.insert(place, folder)


def _load_module(loaded: Loaded, name: str) -> None:
    """Import a module; of a package also its submodules and its SUITE_PACKAGES."""
    if name in loaded.modules:
        return
    module = _import(loaded, name, partial(importlib.import_module, name))
    if module is None:
        return
    for child in sorted(
        pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda c: c.name
    ):
        if child.name != "__main__":
            _load_module(loaded, f"{name}.{child.name}")
    packages = getattr(module, "SUITE_PACKAGES", ())
    if not isinstance(packages, tuple | list):
        raise SuiteError(
            f"suite {name}: SUITE_PACKAGES = {packages!r}; make it a tuple of packages"
        )
    for further in packages:
        _load_module(loaded, further)


def _load_path(loaded: Loaded, path: Path) -> Registered:
    """Import a file, or every .py file below a folder; returns what they registered."""
    path = path.resolve()
    if not path.exists():
        raise SuiteError(f"suite {path}: no such file")
    files = [path] if path.is_file() else sorted(_python_files(path))
    if not files:
        raise SuiteError(f"suite {path}: the folder holds no .py file")
    registered = Registered()
    for file in files:
        registered |= _load_file(loaded, file)
    return registered


def is_test_file(path: Path) -> bool:
    """Whether it is one of pytest's own files: they need pytest's fixtures and assertions, and are no suites."""
    return path.name == "conftest.py" or path.name.startswith("test_")


def _python_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*.py"):
        inner = file.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inner)
        if not hidden and not is_test_file(file):
            yield file.resolve()


def _load_file(loaded: Loaded, path: Path) -> Registered:
    known = _module_of(path)
    if known is not None:
        if known.startswith(_PREFIX) and str(path) not in loaded.files:
            loaded.files.append(str(path))
        elif not known.startswith(_PREFIX) and known not in loaded.modules:
            loaded.modules.append(known)
        return _registered.get(known, Registered()) | _of_module(known)
    name = module_name(path)
    _hand_out_suites()

    def execute() -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    _import(loaded, name, execute, path)
    return _registered[name]


class _Suites(MetaPathFinder):
    """Hands out a file that is loaded as a suite when a sibling imports it: run again it would register twice."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        start = f"{_PREFIX}{fullname.rpartition('.')[2]}_"
        if not any(name.startswith(start) for name in list(sys.modules)):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or not spec.has_location or spec.origin is None:
            return None
        module = sys.modules.get(module_name(Path(spec.origin)))
        if module is None:
            return None
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=_Loaded(module))


class _Loaded(Loader):
    """Gives a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # the import system wrote the alias's over it
        module.__spec__ = self.spec


_finder = _Suites()


def _hand_out_suites() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _module_of(path: Path) -> str | None:
    """The module that this file is imported as already: a second import would register twice."""
    for name, module in list(sys.modules.items()):
        # The dictionary: getattr on a stand-in (contract.lazy) would import what it stands for.
        file = getattr(module, "__dict__", {}).get("__file__")
        if name == "__main__" or not isinstance(file, str) or os.path.basename(file) != path.name:
            continue
        if os.path.realpath(file) == str(path):
            return name
    return None


def _import(
    loaded: Loaded, name: str, run: Callable[[], ModuleType], path: Path | None = None
) -> ModuleType | None:
    """Import one suite and note what it registered; None for a client whose package is missing."""
    before = registry.mark()
    try:
        with exit_refused():
            module = run()
    except KeyboardInterrupt:
        raise
    # Also SystemExit: a suite that ends the process must not end as a usage message of ours.
    except BaseException as error:
        if _is_absent_client(name, error):
            loaded.missing[name] = str(getattr(error, "name", ""))
            return None
        raise SuiteError(f"suite {_place(error, name, path)}: {_text(error)}") from error
    contracts, items, controls = registry.since(before)
    _registered[name] = _registered.get(name, Registered()) | _targets(contracts, items, controls)
    _declaring[name] = frozenset({i.module for i in items} | {c.module for c in controls})
    if path is None:
        loaded.modules.append(name)
    elif str(path) not in loaded.files:
        loaded.files.append(str(path))
    return module


def _of_module(module: str) -> Registered:
    """All that is registered of one module."""
    contracts = [c for c in registry.contracts().values() if c.reference.__module__ == module]
    items = [item for item in registry.implementations() if item.module == module]
    return _targets(contracts, items, [c for c in registry.controls() if c.module == module])


def _targets(
    contracts: Iterable[Contract], items: Iterable[Implementation], controls: Iterable[Control]
) -> Registered:
    def target(item: Implementation | Control, name: str) -> Target:
        return Target(item.kernel, item.profile, name, tuple(sorted(item.parameters.items())))

    return Registered(
        frozenset(contract.name for contract in contracts),
        frozenset(target(i, i.name) for i in items),
        frozenset(target(c, f"{c.colour}.{c.name}") for c in controls),
    )


def _is_absent_client(name: str, error: BaseException) -> bool:
    """Whether a module of a `clients` package lacks only its third-party package."""
    parts = name.split(".")
    return (
        "clients" in parts[:-1]
        and isinstance(error, ModuleNotFoundError)
        and (error.name or parts[0]).split(".")[0] != parts[0]
    )


def _place(error: BaseException, name: str, path: Path | None) -> str:
    """FILE:LINE of the suite's own line that failed; the suite's name where it has none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno or 1}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not _is_framework(frame.filename)
    ]
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    for frame in (own or [frame for frame in frames if not _is_library(frame.filename)])[-1:]:
        return f"{_short(frame.filename)}:{frame.lineno}"
    return _short(str(path)) if path is not None else name


def _is_framework(file: str) -> bool:
    """Whether it is one of our modules (contract/*.py), not of the kernels below it."""
    return os.path.dirname(file) == _FRAMEWORK


def _is_library(file: str) -> bool:
    return file.startswith(os.path.dirname(os.__file__) + os.sep) and "site-packages" not in file


def short_file(module: str) -> str:
    """The file of a module, relative to the working folder where it lies below it; the module's name where it has none."""
    file = getattr(sys.modules.get(module), "__dict__", {}).get("__file__")
    return _short(file) if isinstance(file, str) else module


def _short(file: str) -> str:
    """The path relative to the working folder where it lies below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def _text(error: BaseException) -> str:
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
