"""The tools that device code is made with, as part of what a receipt depends on; nothing of Triton is imported for it."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from contract.engines import nvcc
from contract.engines.capture import MissingCompiler
from contract.engines.tools import of_triton, tool_version

# Bytes at either end of a tool, which tell builds apart as well as all of its 50 MB do.
_END = 1 << 16


@functools.cache
def tools() -> dict[str, str]:
    """Name -> what tells one tool from another: of nvcc and its ptxas, and of the ptxas of Triton; once per process.

    A tool that is not there is left out.
    """
    found = {**of_nvcc(), **of_triton_alone()}
    # what a script on the path runs may change behind it
    if "ptxas" in found:
        try:
            found["ptxas version"] = tool_version(nvcc.ptxas())
        except MissingCompiler as error:
            found["ptxas version"] = str(error)
    return found


def of_nvcc() -> dict[str, str]:
    """Those of `tools` that make code of CUDA C++, without what they say of themselves."""
    try:
        paths = {"nvcc": nvcc.find(), "ptxas": nvcc.ptxas()}
    except MissingCompiler:
        return {}
    return {name: _told(path) for name, path in paths.items() if path.is_file()}


def of_triton_alone() -> dict[str, str]:
    """Those that assemble what Triton makes."""
    return {name: _told(path) for name, path in _assemblers() if path.is_file()}


def _assemblers() -> Iterator[tuple[str, Path]]:
    for name in ("ptxas", "ptxas-blackwell"):
        if own := of_triton(name):
            yield f"triton {name}", own
        # what Triton takes in its place
        variable = f"TRITON_{name.replace('-', '_').upper()}_PATH"
        if value := os.environ.get(variable):
            yield variable, Path(value)


def _told(path: Path) -> str:
    """Size, and SHA-256 of both ends: the same for the same tool wherever it is installed."""
    status = path.stat()
    return _ends(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(64)
def _ends(path: Path, _: int, size: int) -> str:
    """Of a tool, read once while its time and size stay: every compilation asks."""
    with path.open("rb") as file:
        total = hashlib.sha256(file.read(_END))
        file.seek(max(0, size - _END))
        total.update(file.read(_END))
    return f"{size} {total.hexdigest()}"
