"""Which source a kernel's result rests on: every module that its imports reach, by hash.

Imports are read from the syntax tree, those inside functions too; nothing is executed. Followed are
the statements, and what looks like a call of `import_module`, `__import__` or `lazy` with a literal name. A name
computed at run time, and `from package import *` through `__all__`, are not seen.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

ABSENT = "absent"
# Folders below contract/ that are suites, not framework; side by side with it in the checkout.
_SUITES = ("kernels", "references", "controls", "records", "simulator", "pipelines")
# Compiled by the module of the same stem beside them.
_DEVICE_SUFFIXES = (".cu", ".cuh", ".ptx")
_INCLUDED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
# Also in a comment: one module too many only judges a kernel anew.
_IMPORTED = re.compile(rb"""\b(?:import_module|__import__|lazy)\(\s*(?:"([\w.]+)"|'([\w.]+)')""")


class _Import(NamedTuple):
    """One import as written: `from ..b import c` is (2, 'b', ('c',))."""

    level: int
    module: str
    names: tuple[str, ...]


# Real path -> (mtime in ns, size) at which the hash was taken, and the hash.
_hashes: dict[Path, tuple[tuple[int, int], str]] = {}
# Hash -> imports.
_parsed: dict[str, tuple[_Import, ...]] = {}


def module_files(modules: Iterable[str]) -> dict[str, Path]:
    """The file of each module; left out are those without one (built in, namespace, not found).

    A name that ends in `.py` is a path.
    """
    finder = Finder()
    found = {name: finder.file(name) for name in modules}
    return {name: path for name, path in found.items() if path is not None}


def closure(
    modules: Iterable[str],
    packages: Iterable[str],
    *,
    own: bool = False,
    outside: set[str] | None = None,
    finder: Finder | None = None,
) -> dict[str, str]:
    """SHA-256 of every module reached from `modules` by imports, `modules` themselves included.

    Args:
        modules: dotted names or paths that end in `.py`. They need not be imported, nor importable.
        packages: top names or dotted prefixes (`contract.kernels`); only modules in these, and
            those that lie in the folder of a file given by its path, are followed.
        own: follow also every module that is neither the standard library's, nor installed, nor the framework's: the
            helpers of a user's project, wherever they lie on the path.
        outside: gets the top names of installed modules that are imported and not followed.
        finder: what was found before; files that come or go later are not noticed by one.

    Returns:
        name -> digest; 'absent' for a module of `packages` that is imported and does not exist, so
        that its appearance is noticed. Device code beside a module stands as `name:stem.cu`.
    """
    finder = finder or Finder()
    prefixes = tuple(packages)
    start = list(modules)
    folders = [Path(name).resolve().parent for name in start if name.endswith(".py")]
    result: dict[str, str] = {}
    waiting = [(name, True) for name in start]
    while waiting:
        name, named = waiting.pop()
        if name in result:
            continue
        path = finder.file(name)
        inside = named or _within(name, prefixes)
        if path is None:
            # A package without `__init__.py` has no file, and is not absent.
            if inside and not finder.is_package(name):
                result[name] = ABSENT
            continue
        inside = inside or any(folder in path.parents for folder in folders)
        if not (inside or (own and _is_own(path))):
            if outside is not None and _is_installed(path):
                outside.add(name.partition(".")[0])
            continue
        result[name] = file_hash(path)
        for other, digest in _device_files(path).items():
            result[f"{name}:{other}"] = digest
        waiting += [(one, False) for one in finder.reached(name, path) if one not in result]
    return dict(sorted(result.items()))


def _device_files(path: Path) -> dict[str, str]:
    """Hashes of the device code beside a module and of what it includes in quotes, by their path from its folder."""
    found: dict[str, str] = {}
    waiting = [path.with_suffix(suffix) for suffix in _DEVICE_SUFFIXES]
    while waiting:
        file = waiting.pop()
        name = os.path.relpath(file, path.parent)
        if name not in found and file.is_file():
            found[name] = file_hash(file)
            waiting += [file.parent / os.fsdecode(n) for n in _INCLUDED.findall(file.read_bytes())]
    return found


_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_FRAMEWORK = Path(__file__).resolve().parent


def _is_installed(path: Path) -> bool:
    return "site-packages" in path.parts or "dist-packages" in path.parts


def _is_own(path: Path) -> bool:
    """Whether a file is neither installed, nor the standard library's, nor the framework's."""
    return not (
        _is_installed(path)
        or _FRAMEWORK in path.parents
        or any(folder in path.parents for folder in _STANDARD)
    )


def _within(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _reached(name: str, path: Path, imports: Iterable[_Import], finder: Finder) -> Iterator[str]:
    """The modules that these imports load, and the packages whose `__init__` runs before them."""
    if name.endswith(".py"):
        package = ""
    else:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    yield from _parents(name)
    for one in imports:
        base = one.module
        if one.level and not package:
            # A file that was given by its path; the import fails when it runs.
            continue
        if one.level:
            above = package.split(".")[: len(package.split(".")) - one.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        if not base:
            continue
        yield from (base, *_parents(base))
        for attribute in one.names:
            # A module, or something that `base` defines.
            if finder.file(f"{base}.{attribute}") is not None:
                yield f"{base}.{attribute}"


def _parents(name: str) -> Iterator[str]:
    while not name.endswith(".py") and "." in name:
        name = name.rpartition(".")[0]
        yield name


@functools.cache
def _real(file: str) -> Path:
    return Path(file).resolve()


class Finder:
    """Finds modules as the import system would, parents included, without importing any."""

    def __init__(self) -> None:
        self.specs: dict[str, ModuleSpec | None] = {}
        self._files: dict[str, Path | None] = {}
        self._reached: dict[str, tuple[str, tuple[str, ...]]] = {}

    def reached(self, name: str, path: Path) -> tuple[str, ...]:
        """The modules that a module's imports load, each once."""
        digest = file_hash(path)
        known = self._reached.get(name)
        if known is None or known[0] != digest:
            found = dict.fromkeys(_reached(name, path, _imports(path), self))
            known = self._reached[name] = digest, tuple(found)
        return known[1]

    def file(self, name: str) -> Path | None:
        """The real path of the module's file: through a link or not, one file has one path."""
        if name not in self._files:
            self._files[name] = self._file(name)
        return self._files[name]

    def _file(self, name: str) -> Path | None:
        if name.endswith(".py"):
            path = Path(name).resolve()
            return path if path.is_file() else None
        # What was loaded is what counts, also under a name that no finder knows.
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is None:
            spec = self.spec(name)
            loaded = spec.origin if spec is not None and spec.has_location else None
        return _real(loaded) if loaded else None

    def is_package(self, name: str) -> bool:
        spec = self.spec(name)
        return spec is not None and spec.submodule_search_locations is not None

    def spec(self, name: str) -> ModuleSpec | None:
        if name not in self.specs:
            self.specs[name] = self._find(name)
        return self.specs[name]

    def _find(self, name: str) -> ModuleSpec | None:
        parent = name.rpartition(".")[0]
        where = None
        if parent:
            above = self.spec(parent)
            if above is None or above.submodule_search_locations is None:
                return None
            where = list(above.submodule_search_locations)
        # Not importlib.util.find_spec, which imports the parents.
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, where) if find else None
            if spec is not None:
                return spec
        return None


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read once while its time and size stay."""
    status = path.stat()
    stamp = (status.st_mtime_ns, status.st_size)
    known = _hashes.get(path)
    if known is None or known[0] != stamp:
        known = _hashes[path] = (stamp, hashlib.sha256(path.read_bytes()).hexdigest())
    return known[1]


def _imports(path: Path) -> tuple[_Import, ...]:
    if path.suffix != ".py":
        return ()
    key = file_hash(path)
    if key not in _parsed:
        _parsed[key] = tuple(_read_imports(path.read_bytes()))
    return _parsed[key]


def _read_imports(data: bytes) -> Iterator[_Import]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        # Its hash still counts; it cannot import anything.
        return
    # Statements only, a fifth of the nodes.
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _Import(0, alias.name, ())
        elif isinstance(node, ast.ImportFrom):
            yield _Import(node.level, node.module or "", tuple(a.name for a in node.names))
    for first, second in _IMPORTED.findall(data):
        name = (first or second).decode()
        yield _Import(len(name) - len(name.lstrip(".")), name.lstrip("."), ())


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, block, None)
            # The body of a lambda or conditional expression is no list.
            if isinstance(inside, list):
                waiting += inside


def distribution_hash(name: str) -> str:
    """SHA-256 of an installed distribution's RECORD, which holds the hash of each of its files.

    An editable one has a RECORD of its link only: 'editable:' and the hash of RECORD and link. One
    without RECORD (of a system's package manager): its METADATA. 'absent' where not installed.
    """
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return ABSENT
    text = distribution.read_text("RECORD") or distribution.read_text("METADATA") or ""
    link = distribution.read_text("direct_url.json") or ""
    if '"editable": true' in link.replace('":t', '": t'):
        return "editable:" + hashlib.sha256((text + link).encode()).hexdigest()
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def framework_hash() -> str:
    """SHA-256 over the framework's own Python files; once per process, as they are loaded once."""
    root = Path(__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if parts[0] not in _SUITES:
            total.update(f"{'/'.join(parts)}\0{file_hash(path.resolve())}\n".encode())
    return total.hexdigest()
