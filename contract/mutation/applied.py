"""In a worker: which lines of an implementation run, and one change of its source.

The changed text is compiled in memory and its code put into the functions that exist: no file is touched, nothing is
imported or registered a second time, and the engine calls what it always calls.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from contract import registry, suites
from contract.interval import Array
from contract.mutation.noting import NOTED, Notes, noting

#: file -> lines that ran.
_ran: dict[str, set[int]] = {}
_notes: dict[str, Notes] = {}
#: Places in which the change was put.
_places = 0


def watch(payload: dict[str, Any]) -> None:
    """Setup of a worker: load the suites, and note from then on what runs of these files, and in which formats."""
    suites.reload(payload["suites"])
    for file in payload["files"]:
        _ran[file], _notes[file] = set(), Notes()
        for module in _modules(file):
            vars(module)[NOTED] = _notes[file]
        _put(file, compile(noting(Path(file).read_text()), file, "exec"))
    sys.settrace(_enter)


def seen(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """{"lines": file -> lines that ran since the worker began; "notes": file -> contract.mutation.noting.Notes}."""
    lines = {file: sorted(ran) for file, ran in _ran.items()}
    return {"lines": lines, "notes": {file: one.as_json() for file, one in _notes.items()}}, {}


@functools.lru_cache(1024)
def _real(file: str) -> str:
    return os.path.realpath(file)


def _enter(frame: FrameType, event: str, argument: Any) -> Any:
    ran = _ran.get(_real(frame.f_code.co_filename))
    if ran is None:
        return None

    def at(frame: FrameType, event: str, argument: Any) -> Any:
        ran.add(frame.f_lineno)
        return at

    return at


def change(payload: dict[str, Any]) -> None:
    """Setup of a worker: load the suites, and put one change into what its file defined.

    Args:
        payload: "suites"; "file": the real path of the file; "text": all of it, changed. Where it is a constant of the
            module: "name", "value" as an expression, and the "files" that may import it.
    """
    global _places
    suites.reload(payload["suites"])
    if payload["name"]:
        _places = _set(payload)
        return
    _places = _put(payload["file"], compile(payload["text"], payload["file"], "exec"))


def _put(file: str, code: CodeType) -> int:
    """Give the functions of a file the code of a changed text; of how many it is another."""
    new = {_key(one): one for one in nested(code)}
    changed = 0
    for function in list(_functions(file)):
        other = new.get(_key(function.__code__))
        if other is not None and other != function.__code__:
            function.__code__ = other
            changed += 1
    return changed


def places(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """{"places": in how many the change was put}."""
    return {"places": _places}, {}


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that it holds."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _modules(file: str) -> list[ModuleType]:
    """What is imported from a file, under whatever name."""
    found = []
    for module in list(sys.modules.values()):
        # the dictionary: a stand-in (contract.lazy) would import what it stands for
        path = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(path, str) or os.path.basename(path) != os.path.basename(file):
            continue
        if _real(path) == file:
            found.append(module)
    return found


def _functions(file: str) -> Iterator[FunctionType]:
    """The functions that a file defined, wherever a decorator, a class, a closure or a table holds them."""
    waiting: list[Any] = [item.call for item in registry.implementations()]
    modules = {module.__name__: module for module in _modules(file)}
    for module in modules.values():
        waiting += vars(module).values()
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            waiting += _cells(one)
            if _real(one.__code__.co_filename) == file:
                yield one
        elif isinstance(one, type):
            if one.__module__ in modules:
                waiting += vars(one).values()
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        else:
            waiting += _inside(one)


def _cells(function: FunctionType) -> Iterator[Any]:
    yield getattr(function, "__wrapped__", None)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # not filled yet
            continue


def _inside(one: Any) -> Iterable[Any]:
    """What a wrapper holds: of a method its function, of a cache or a partial what it calls."""
    if isinstance(one, property):
        return [one.fget]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, staticmethod | classmethod) or type(one).__name__ in (
        "_lru_cache_wrapper",
        "method",
        "cached_property",
    ):
        return [
            getattr(one, name, None) for name in ("__wrapped__", "__func__", "func", "__self__")
        ]
    return []


def _set(payload: dict[str, Any]) -> int:
    """Give a constant of a module another value, also where its files import it by name; how many modules have it."""
    name = payload["name"]
    own = [module for module in _modules(payload["file"]) if name in vars(module)]
    others = [
        module
        for file in payload["files"]
        for module in _modules(file)
        if any(vars(module).get(name) is vars(home)[name] for home in own)
    ]
    values = [eval(payload["value"], vars(home)) for home in own[:1]]
    changed = {id(module): module for module in (*own, *others)}
    for module in changed.values():
        vars(module)[name] = values[0]
    return len(changed)
