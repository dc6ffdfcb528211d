"""Kernels of contract.kernels.cuda behind the macro of one fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from contract import device_files
from contract.engines.cuda_launch import Kernel
from contract.kernels import cuda

FOLDER = Path(__file__).parent


def planted(name: str) -> Callable[[str, str], Kernel]:
    """A function of (entry, fault): an entry of NAME.cu as controls/cuda_NAME.cu includes it, with the macro defined.

    To be called while a module is imported, so that its receipts depend on the files.
    """
    file = FOLDER / f"cuda_{name}.cu"
    headers = (FOLDER / "faults.cuh", cuda.FOLDER / f"{name}.cu", *cuda.HEADERS)
    device_files.declare((file, *headers))

    def of(entry: str, fault: str) -> Kernel:
        return Kernel(file, entry, options=(*cuda.FLAGS, f"-D{fault}"), headers=headers)

    return of
