"""CUDA C++ to PTX and to machine code, with whatever nvcc is there and no device.

nvcc is looked for in $CUDA_HOME, on the path and in the wheel nvidia-cuda-nvcc. A source is compiled in an empty folder
that holds it and its declared headers alone, so that a header which is not declared is missed and never read stale.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from contract import device_files
from contract.engines.capture import LaunchError, MissingCompiler
from contract.engines.tools import tool_version
from contract.store import atomic_write_bytes, atomic_write_text, digest

#: Extra that installs the compiler, and what is in it.
EXTRA = "kernel-contract[cuda]"
# Raised when what is stored for a key changes.
_SCHEMA = 3
# nvcc error   : 'cicc' died due to signal 9 (Kill signal)
_DIED = "died due to signal"


class CompileError(LaunchError):
    """A source that nvcc refuses; the message is its first."""


@functools.cache
def find() -> Path:
    """The nvcc of this machine.

    Raises:
        MissingCompiler: there is none.
    """
    for path in _places():
        if path.is_file():
            return path
    raise MissingCompiler(
        "nvcc is not installed: set CUDA_HOME, put nvcc on the path, or install the wheel nvidia-cuda-nvcc"
        f" (pip install '{EXTRA}')"
    )


def missing_reason() -> str:
    """'' or why nothing can be compiled here."""
    try:
        version()
    except MissingCompiler as error:
        return str(error)
    return ""


def _places() -> Iterator[Path]:
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home) / "bin" / "nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found)
    # a namespace package, one folder for each release of CUDA
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(folder).glob("cu*/bin/nvcc"), reverse=True)


def version() -> str:
    """The version of nvcc: '13.0.88'."""
    return tool_version(find())


def ptxas() -> Path:
    """The assembler beside nvcc."""
    return find().with_name("ptxas")


def compiled(
    source: Path,
    architecture: str,
    form: str,
    *,
    options: Sequence[str] = (),
    headers: Sequence[Path] = (),
    cache: Path,
) -> tuple[bytes, str]:
    """A source as PTX or machine code, and what the compiler said (of a cubin `ptxas -v`), from the cache where it was compiled before.

    Args:
        source: the .cu file.
        architecture: 'sm_80'.
        form: 'ptx' or 'cubin'.
        options: of nvcc, beside what the other arguments say.
        headers: files and folders that the source includes, by their names.
        cache: folder whose files are named by the hash of all that they depend on.

    Raises:
        CompileError: nvcc refuses it.
        MissingCompiler: there is no nvcc.
        LaunchError: a source or header is missing.
    """
    files = dict(_contents([source, *headers]))
    key = digest(
        {
            "schema": _SCHEMA,
            "source": source.name,
            "files": files,
            "architecture": architecture,
            "form": form,
            "options": list(options),
            "nvcc": version(),
        }
    )
    place = cache / "nvcc" / key[:2] / f"{key}.{form}"
    log = place.with_suffix(".log")
    if kept := _kept(place, log):
        return kept
    data, said = _compile(source, architecture, form, options, headers)
    place.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(place, data)
    atomic_write_text(log, f"{_seal(data, said)}\n{said}")
    return data, said


def _kept(place: Path, log: Path) -> tuple[bytes, str] | None:
    """What was compiled before; None where it is absent, or is not what was written: it is compiled again."""
    try:
        data = place.read_bytes()
        seal, _, said = log.read_text().partition("\n")
    except (OSError, ValueError):
        return None
    return (data, said) if seal == _seal(data, said) else None


def _seal(data: bytes, said: str) -> str:
    """SHA-256 of code and log: the name of a file says what it was made from, not what is in it."""
    return hashlib.sha256(data + said.encode()).hexdigest()


def source_hash(source: Path, headers: Sequence[Path]) -> str:
    """SHA-256 over the names and contents of a source and its headers."""
    return digest(dict(_contents([source, *headers])))


def _contents(paths: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """(name below the folder that is compiled in, hash) of each file."""
    from contract.sources import file_hash

    for path in paths:
        if not path.exists():
            raise LaunchError(f"{path}: there is no such source or header")
        for name, file in device_files.inside(path):
            device_files.use(file)
            yield name, file_hash(file)


def _compile(
    source: Path, architecture: str, form: str, options: Sequence[str], headers: Sequence[Path]
) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="nvcc-") as name:
        folder = Path(name)
        for path in (source, *headers):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, folder / path.name)
        out = folder / f"out.{form}"
        includes = [f"-I{path.name}" for path in headers if path.is_dir()]
        command = [
            str(find()), f"-{form}", *(["-Xptxas=-v"] if form == "cubin" else []), f"-arch={architecture}", "-std=c++17", "-I.", *includes, *options,
            source.name, "-o", out.name,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise MissingCompiler(f"{find()} does not run: {error}") from error
        said = done.stderr + done.stdout
        if done.returncode < 0 or _DIED in said:
            # for want of memory, or by its own fault: that says nothing of the source
            raise MissingCompiler(f"{source}: nvcc was ended by a signal: {_first_error(said)}")
        if done.returncode == 0 and not (out.is_file() and out.stat().st_size):
            raise MissingCompiler(f"{source}: {find()} ended well and gave no code")
        if done.returncode:
            raise CompileError(f"{source}: {_first_error(said)}")
        return out.read_bytes(), said


def _first_error(text: str) -> str:
    """The first line that says what is wrong, else the last of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    first = (wrong or lines[-1:] or ["nvcc failed and said nothing"])[0]
    if "host compiler" in first or "g++" in first:
        first += " (nvcc needs a host compiler: install g++)"
    return first
