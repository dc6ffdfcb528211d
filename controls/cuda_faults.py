"""Kernels of contract.kernels.cuda behind the macro of one fault."""

from __future__ import annotations

from pathlib import Path

from contract.engines.cuda_launch import Kernel
from contract.kernels import cuda

FOLDER = Path(__file__).parent


def planted(name: str, entry: str, fault: str) -> Kernel:
    """An entry of NAME.cu as controls/cuda_NAME.cu includes it, with the macro defined."""
    headers = (FOLDER / "faults.cuh", cuda.FOLDER / f"{name}.cu", *cuda.HEADERS)
    return Kernel(
        FOLDER / f"cuda_{name}.cu", entry, options=(*cuda.FLAGS, f"-D{fault}"), headers=headers
    )
