"""Triton's cache of compiled code, with a seal on every entry: what is not what was written is compiled again.

Triton names an entry by what it was made from, and reads what is in it unseen. A file that a full disk or a crash cut
short would be executed as the kernel, and be a failure of the kernel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any


@contextmanager
def sealed() -> Iterator[None]:
    """Let Triton keep what it compiles sealed, unless $TRITON_CACHE_MANAGER names another keeper."""
    from triton import knobs

    state = dict(vars(knobs.cache))
    if knobs.cache.manager_class is None:
        vars(knobs.cache)["manager_class"] = _keeper()
    try:
        yield
    finally:
        vars(knobs.cache).clear()
        vars(knobs.cache).update(state)


@cache
def _keeper() -> Any:
    from triton.runtime.cache import FileCacheManager

    class Sealed(FileCacheManager):  # type: ignore[misc]  # triton is untyped here
        def put_group(self, filename: str, group: Mapping[str, str]) -> Any:
            path = super().put_group(filename, group)
            self.put(_seal(group), _sealed_by(filename), binary=False)
            return path

        def get_group(self, filename: str) -> Any:
            """The files of an entry; None, as where there is none, for one that is damaged or was never sealed."""
            try:
                found = super().get_group(filename)
                seal = self.get_file(_sealed_by(filename))
                whole = found and seal and Path(seal).read_text() == _seal(found)
            except (OSError, ValueError, AttributeError):
                return None
            return found if whole else None

    return Sealed


def _sealed_by(filename: str) -> str:
    return f"{filename}.seal"


def _seal(group: Mapping[str, str]) -> str:
    """The hash of every file of an entry, as text."""
    hashes = {
        name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in group.items()
    }
    return json.dumps(hashes, sort_keys=True)
