"""CUDA C++ to PTX and to machine code, with whatever nvcc is there and no device.

nvcc is looked for in $CUDA_HOME, on the path and in the wheel nvidia-cuda-nvcc. A source is compiled in an empty folder
that holds it and its declared headers alone, so that a header which is not declared is missed and never read stale, and
one that a path reaches elsewhere is refused. Variables that change what is compiled (NVCC_PREPEND_FLAGS,
NVCC_APPEND_FLAGS, CPATH, C_INCLUDE_PATH, CPLUS_INCLUDE_PATH) are not passed on. PTX that is made is assembled once by the
ptxas beside nvcc, where there is one, so that what no sm_80 has is not executed as sm_80.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from contract import device_files
from contract.engines.capture import LaunchError, MissingCompiler, NeedsLater
from contract.engines.tools import DIED, first_error, tool_version
from contract.store import atomic_write_bytes, atomic_write_text, digest

#: Extra that installs the compiler, and what is in it.
EXTRA = "kernel-contract[cuda]"
# Raised when what is stored for a key changes.
_SCHEMA = 4
# ptxas: Feature 'elect' requires .target sm_90 or higher; Instruction 'wgmma.fence' not supported on .target 'sm_80'
_NEWER = re.compile(
    r"(\w+ '[^']+' (?:requires \.target sm_\w+(?: or higher)?|not supported on \.target '\w+'))"
)
_UNSEEN = frozenset(
    {"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"}
)
# Options that read a file of options, or that say where what was read is kept.
_REFUSED = re.compile(r"(-optf|--options-file|-keep-dir|--keep-dir)(=|\Z)")
# What each compilation says for itself.
_TARGET = re.compile(
    r"(-arch|--?gpu-architecture|-code|--?gpu-code|-gencode|--?generate-code)(=|\Z)"
)
# fatal error: cap.h: No such file or directory
_ABSENT = re.compile(r"fatal error: (\S+): No such file")
# A line marker of a preprocessed source: # 1 "/usr/include/math.h" 1 3 4
_MARKER = re.compile(rb'^# \d+ "((?:[^"\\\n]|\\.)*)"', re.MULTILINE)


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
        NeedsLater: an instruction that the architecture lacks.
        MissingCompiler: there is no nvcc, or it ended by a fault of its own.
        LaunchError: a source or header is missing, or lies where nothing notices its edit.
    """
    # which looks for nvcc here
    from contract import device_tools

    if wrong := [option for option in options if _REFUSED.match(option)]:
        raise LaunchError(
            f"{source}: option {wrong[0]} of nvcc is not taken: write out what it stands for"
        )
    if wrong := [option for option in options if _TARGET.match(option)]:
        raise LaunchError(
            f"{source}: option {wrong[0]} of nvcc is not taken: it is compiled for each architecture that is asked for;"
            " leave it out"
        )
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
            # one of the same version may be another one
            "tools": device_tools.of_nvcc(),
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
            "--keep", source.name, "-o", out.name,
        ]  # fmt: skip
        said = _ran(source, command, folder)
        if not (out.is_file() and out.stat().st_size):
            raise MissingCompiler(f"{source}: {find()} ended well and gave no code")
        _check_read(source, folder)
        if form == "ptx" and ptxas().is_file():
            _ran(
                source, [str(ptxas()), f"-arch={architecture}", out.name, "-o", "out.check"], folder
            )
        return out.read_bytes(), said


def _ran(source: Path, command: Sequence[str], folder: Path) -> str:
    """What a tool of the compiler says of a source.

    Raises:
        NeedsLater, CompileError, MissingCompiler: as `compiled`.
    """
    done = _run(command, folder)
    said, tool = done.stderr + done.stdout, Path(command[0]).name
    if not done.returncode:
        return said
    if newer := _NEWER.findall(said):
        raise NeedsLater(f"{source}: {'; '.join(dict.fromkeys(newer))}")
    if done.returncode < 0 or 128 < done.returncode < 255 or DIED.search(said):
        # (255 is how ptxas refuses) for want of memory or room, or by its own fault: that says nothing of the source
        raise MissingCompiler(
            f"{source}: {tool} was ended by a signal, or by a fault of its own: {_first_error(said)}"
        )
    if not said.strip():
        raise MissingCompiler(f"{source}: {tool} ended with {done.returncode} and said nothing")
    raise CompileError(f"{source}: {_first_error(said)}{_undeclared(source, said)}")


def _undeclared(source: Path, said: str) -> str:
    """What to do about a header that lies beside the source, and is not where it is compiled."""
    absent = _ABSENT.search(said)
    if absent is None or not (source.parent / absent[1]).exists():
        return ""
    # a header below a folder comes with the folder
    declared = source.parent / Path(absent[1]).parts[0]
    return f" where it is compiled: declare {declared} in headers= of its Kernel"


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A tool of the compiler, without the variables that change what it makes."""
    seen = {name: value for name, value in os.environ.items() if name not in _UNSEEN}
    try:
        return subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True, errors="replace", env=seen
        )  # fmt: skip
    except OSError as error:
        raise MissingCompiler(f"{command[0]} does not run: {error}") from error


def _check_read(source: Path, folder: Path) -> None:
    """Refuse a file that was read and is neither in the folder that is compiled in, nor the toolkit's or the system's."""
    # not by -MD, which preprocesses once more, as for the host
    names: dict[str, None] = {}
    for kept in folder.glob("*.cpp1.ii"):
        found = _MARKER.findall(kept.read_bytes())
        names |= dict.fromkeys(os.fsdecode(name) for name in found)
    if not names:
        raise MissingCompiler(
            f"{source}: {find()} does not keep what it read, or not with line markers"
        )
    files = [os.path.realpath(folder / _unescaped(name)) for name in names]
    home = os.path.realpath(folder)
    outside = [file for file in files if not file.startswith(home + os.sep)]
    known = _system_folders(find()) if outside else ()
    for file in outside:
        # a #line of generated source may name what is not there
        if os.path.isfile(file) and not any(file.startswith(place + os.sep) for place in known):
            raise LaunchError(
                f"{source}: it reads {file}, whose edits nothing would notice; declare the file or its folder in headers="
                " and include it by a name below that"
            )


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


@functools.cache
def _system_folders(tool: Path) -> tuple[str, ...]:
    """The real paths of the folders where an nvcc and its host compiler look for headers by themselves."""
    done = _run([str(tool), "-E", "-Xcompiler", "-v", "-x", "cu", os.devnull])
    listed = done.stderr.partition("search starts here:")[2].partition("End of search list")[0]
    found = [line.strip() for line in listed.splitlines() if line.startswith(" /")]
    return tuple(dict.fromkeys(map(os.path.realpath, ["/usr/include", *found])))


def _first_error(text: str) -> str:
    """`first_error`, and what to install where there is no compiler for the host."""
    first = first_error(text) or "nvcc failed and said nothing"
    if "host compiler" in first or "g++" in first:
        first += " (nvcc needs a host compiler: install g++)"
    return first
