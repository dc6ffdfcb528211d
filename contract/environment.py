"""What a result depends on beside the sources: interpreter, processor, libraries, variables.

Read without importing torch, in the process of the judge: workers set the thread variables.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from contract.store import digest

# Which code path a library takes: they can move bits on one machine.
_ISA = re.compile(
    r"(ATEN_CPU_CAPABILITY|(ONEDNN|DNNL|MKL|OPENBLAS|NPY|TORCH|TRITON|CUBLAS|NVIDIA)_.+)\Z"
)
# Not of a path: how many threads, which are listed by themselves, and where files lie.
_THREADS = re.compile(r"((OMP|OPENBLAS|MKL|NUMEXPR)_NUM_THREADS|OMP_THREAD_LIMIT)\Z")
_PLACES = re.compile(r".*_(HOME|DIR|PATH|ROOT|LOGS|VISIBLE_DEVICES)\Z")
_LIBRARIES = ("torch", "numpy", "hypothesis", "mpmath", "triton")


def environment() -> dict[str, Any]:
    """Everything outside the sources on which a bit of an output may depend, as JSON values.

    A library that is not installed is None. The capability that torch chooses follows from the
    processor's flags and ATEN_CPU_CAPABILITY.
    """
    variables = sorted(os.environ.items())
    isa = {
        k: v for k, v in variables if _ISA.match(k) and not (_THREADS.match(k) or _PLACES.match(k))
    }
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "machine": platform.machine(),
        # Its libm computes exp and tanh where NumPy and torch have no code of their own.
        "libc": " ".join(platform.libc_ver()).strip(),
        **_processor(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "nvcc": _nvcc(),
        "isa_variables": isa,
        "threads": {k: v for k, v in variables if _THREADS.match(k)},
    }


def environment_key() -> str:
    """The digest of `environment()`: equal where the same bits are to be expected."""
    return digest(environment())


@functools.cache
def _nvcc() -> str | None:
    """The version of the compiler of CUDA C++, which need not be an installed package; None where there is none."""
    from contract.engines import nvcc

    return None if nvcc.missing_reason() else nvcc.version()


@functools.cache
def _processor() -> dict[str, str]:
    """Model and digest of the feature flags of the first processor; of the platform elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    # ARM calls them Features, and names the model by numbers.
    flags = sorted((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or fields.get("CPU part") or platform.processor()
    # One name (AMD EPYC, in a virtual machine) stands for several cores.
    numbers = [fields.get(name, "") for name in ("cpu family", "model", "stepping")]
    return {
        "processor": " ".join([model, "/".join(numbers)]).strip(" /"),
        "processor_flags": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16],
    }


@functools.cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
