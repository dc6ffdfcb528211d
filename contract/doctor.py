"""What this machine can run, and why not the rest: engines, compilers, versions, known faults of libraries.

Every fault is looked for here, with its own input: a line says what this installation does, not what others did.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from contract.availability import missing_reason
from contract.errors import ContractError

#: Package -> what it is for, and how it is installed where that is not with this one.
PACKAGES = {
    "numpy": ("all arithmetic of references", ""),
    "torch": ("the engine host", ""),
    "transformers": ("its modules as implementations", "transformers"),
    "triton": ("implementations in Triton", "triton"),
    "liger_kernel": ("its launchers as implementations", "clients"),
    "compressed_tensors": ("its formats as implementations", "formats"),
    "gguf": ("block formats of GGUF", "formats"),
    "mlx": ("its operators as implementations", "formats"),
    "ml_dtypes": ("tests of this project", "test"),
}


@dataclass(frozen=True)
class Fault:
    """A rounding fault of a library that a kernel's author meets.

    Attributes:
        library: the package; nothing is asked where it is missing.
        what: what is wrong, with the input that shows it.
        instead: what this project does.
        shows: whether the installed one has it.
    """

    library: str
    what: str
    instead: str
    shows: Callable[[], bool]


def _torch_twice() -> bool:
    import torch

    # a tie of bf16 and a little more, which fp32 does not hold
    return bool(torch.tensor(1 + 2.0**-8 + 2.0**-40, dtype=torch.float64).bfloat16() == 1)


def _ml_dtypes_twice() -> bool:
    import ml_dtypes
    import numpy as np

    return bool(np.float64(1 + 2.0**-8 + 2.0**-40).astype(ml_dtypes.bfloat16) == 1)


def _mpmath_subnormal() -> bool:
    import mpmath

    with mpmath.workprec(200):
        return float(mpmath.ldexp(mpmath.mpf(0x3BFFFFFFFFFFFFF), -1129)) == 8 * 2.0**-1074


FAULTS = (
    Fault("torch", "float64 to bf16 rounds twice: 1 + 2^-8 + 2^-40 becomes 1", "contract.formats rounds the exact value once", _torch_twice),
    Fault("ml_dtypes", "float64 to bf16 rounds twice: 1 + 2^-8 + 2^-40 becomes 1", "used in tests only, from fp32", _ml_dtypes_twice),
    Fault("mpmath", "float() rounds twice in the subnormal range: 0x3bfffffffffffff 2^-1129 becomes 8 2^-1074", "contract.exactround rounds the integer", _mpmath_subnormal),
)  # fmt: skip


def lines() -> Iterator[str]:
    """The report, line by line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield (
        f"kernel-contract {metadata.version('kernel-contract')}, Python {platform.python_version()},"
        f" {platform.system()} {platform.machine()}, {cores} cores"
    )
    yield "engines"
    yield from (f"  {line}" for line in _engines())
    yield "packages"
    for name, (purpose, extra) in PACKAGES.items():
        missing = missing_reason((name,))
        how = f" (pip install 'kernel-contract[{extra}]')" if extra else ""
        yield f"  {name}: {f'not installed{how}' if missing else _version(name)}; for {purpose}"
    yield "known faults of libraries, looked for here"
    for fault in FAULTS:
        if missing_reason((fault.library,)):
            continue
        yield f"  {_shown(fault)}: {fault.library}: {fault.what}; {fault.instead}"


def _shown(fault: Fault) -> str:
    try:
        return "found" if fault.shows() else "not found"
    except Exception as error:  # noqa: BLE001 - a broken library is a line of the report
        return f"not told ({type(error).__name__}: {error})"


def _version(name: str) -> str:
    for distribution in metadata.packages_distributions().get(name, ()):
        return metadata.version(distribution)
    return "installed, version unknown"


def _engines() -> Iterator[str]:
    yield f"host runs: torch {_version('torch')} on {_capability()}"
    yield "ptx runs: code compiled for sm_80 is executed by NumPy, on any machine; evidence of a CPU, not of a GPU"
    yield f"  Triton: {_triton()}"
    yield f"  CUDA C++: {_cuda()}"
    yield f"  resource records: {_targets()}"
    yield f"gpu {_gpu()}"
    if missing_reason(("triton",)):
        yield "Triton's interpreter is refused as an engine (not installed)"
    else:
        from contract.engines.interpreter_check import verdict

        yield f"Triton's interpreter is refused as an engine: {verdict()}"


def _capability() -> str:
    try:
        import torch

        return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    except Exception as error:  # noqa: BLE001 - a broken library is a line of the report
        return f"nothing: {type(error).__name__}: {error}"


def _triton() -> str:
    if missing := missing_reason(("triton",)):
        return f"{missing}: pip install 'kernel-contract[triton]'"
    from contract.engines.triton_launch import ptxas_version

    try:
        below, above = ptxas_version(80), ptxas_version(100)
    except (ContractError, ImportError, OSError, RuntimeError) as error:
        return f"triton {_version('triton')} without its assembler: {error}"
    return f"triton {_version('triton')}, ptxas {below} below sm_90, {above} from it"


def _cuda() -> str:
    from contract.engines import nvcc
    from contract.engines.tools import tool_version

    if missing := nvcc.missing_reason():
        return missing
    return f"nvcc {nvcc.version()} ({_home(str(nvcc.find()))}), ptxas {tool_version(nvcc.ptxas())}"


def _home(path: str) -> str:
    """A path below the environment's or the user's folder, without it."""
    for folder, name in ((sys.prefix, "the environment"), (os.path.expanduser("~"), "~")):
        if path.startswith(folder + os.sep):
            return f"{name}{path.removeprefix(folder)}"
    return path


def _targets() -> str:
    from contract.compiled.architectures import AMD_NAMES, CUDA_NAMES

    return f"{', '.join(CUDA_NAMES)}; of Triton also {', '.join(AMD_NAMES)}"


def _gpu() -> str:
    from contract.engines import devices
    from contract.engines.gpu import unusable

    if why := unusable():
        return f"does not run: {why}"
    gpu = devices.current()
    return f"runs: {gpu.name}, {gpu.architecture}"
