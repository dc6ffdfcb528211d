"""Files that kernels are compiled from: declared where a kernel is made, used where it is compiled.

What is declared while a module is imported is part of the receipts of what reaches that module. A worker reports what it
used, so that a result which rests on more than its receipt knows is not kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

# File or folder -> the modules, by their files, whose import made a kernel of it.
_declared: dict[Path, set[str]] = {}
_used: dict[str, None] = {}


def declare(paths: Iterable[Path]) -> None:
    """Note files and folders of a kernel that is being made, by the module that is being imported."""
    frame: FrameType | None = sys._getframe(1)
    # what a helper makes is of the module that called it
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    maker = "" if frame is None else os.path.realpath(frame.f_code.co_filename)
    for path in paths:
        _declared.setdefault(path.absolute(), set()).add(maker)


def count() -> int:
    """How much is declared: changes with every declaration that is new."""
    return sum(1 + len(makers) for makers in _declared.values())


def of(module: Path) -> list[Path]:
    """The real files of all kernels that the module of this real path made; of a folder, every file in it."""
    found = {
        file
        for path, makers in _declared.items()
        if str(module) in makers
        for _, file in inside(path)
    }
    return sorted(file.resolve() for file in found)


def inside(path: Path) -> Iterator[tuple[str, Path]]:
    """(name from the folder that holds the path, file): the file itself, or each below a folder, through links too."""
    if not path.is_dir():
        yield path.name, path
        return
    for folder, _, names in sorted(os.walk(path, followlinks=True)):
        for name in sorted(names):
            file = Path(folder) / name
            yield f"{path.name}/{file.relative_to(path).as_posix()}", file


def use(file: Path) -> None:
    """Note a file that code was made from in this process."""
    _used[str(file.resolve())] = None


def take_used() -> list[str]:
    """The real paths of all files that code was made from in this process since they were last taken."""
    found = list(_used)
    _used.clear()
    return found
