"""The tools of a compiler: the versions that they state, and those that Triton brings."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

from contract.engines.capture import MissingCompiler

_SECONDS = 10.0
#: What a compiler says that died, or had no room, which says nothing of its source.
#: nvcc error   : 'cicc' died due to signal 9 (Kill signal)
DIED = re.compile(
    r"died due to signal|segmentation fault|internal (compiler )?error|^terminated\b|terminated program|file size limit|no space left",
    re.IGNORECASE | re.MULTILINE,
)


@functools.cache
def tool_version(path: Path) -> str:
    """The version that a CUDA tool states: 'release 12.9, V12.9.86' -> '12.9.86'.

    Raises:
        MissingCompiler: it does not run, does not end in ten seconds, or states none.
    """
    try:
        text = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=_SECONDS
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise MissingCompiler(f"{path} --version does not end within {_SECONDS:g} s") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingCompiler(f"{path} does not run: {error}") from error
    found = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    if not found:
        raise MissingCompiler(f"{path} --version names no version: {text.strip()[-80:]!r}")
    return found[1]


def of_triton(name: str) -> Path | None:
    """A tool of NVIDIA's that Triton brings: ptxas, ptxas-blackwell, cuobjdump; None without Triton. It is not imported."""
    spec = importlib.util.find_spec("triton")
    for folder in (spec and spec.submodule_search_locations) or ():
        return Path(folder) / "backends" / "nvidia" / "bin" / name
    return None


def first_error(*texts: str) -> str:
    """The first line of what a compiler said that says what is wrong, else the last of all; '' where there is none."""
    lines = [[line.strip() for line in text.splitlines() if line.strip()] for text in texts]
    for line in (one for text in lines for one in text):
        if "error" in line.lower() or "fatal" in line.lower():
            return line
    return lines[-1][-1] if lines[-1] else ""
