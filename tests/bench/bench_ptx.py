"""The PTX engine against Triton's interpreter, on the same kernels of kernels/triton and the same arrays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# at least as fast
LIMIT = 1.0
# passes of a case, at least, and seconds of them: the best of a few passes of milliseconds is chance
PASSES, LONG = 7, 0.5
# the interpreter takes seconds a call: beyond so many no further pass begins
ENOUGH = 2.0


def cases() -> dict[str, Callable[[], Any]]:
    """Calls of launchers; what executes their launches is the caller's business."""
    import torch

    from contract.kernels.triton.geglu import geglu_triton
    from contract.kernels.triton.linear import linear
    from contract.kernels.triton.rms_norm import rms_norm_triton
    from contract.kernels.triton.rope import rope_triton

    made = torch.Generator().manual_seed(0)

    def values(*shape: int) -> Any:
        return torch.randn(*shape, generator=made).to(torch.bfloat16)

    x, weight = values(512, 1152), values(1152)
    gate, up = values(64, 6912), values(64, 6912)
    heads, cos, sin = values(128, 4, 256), values(128, 128), values(128, 128)
    a, b = values(64, 64), values(64, 64)
    return {
        "rms_norm 512x1152": lambda: rms_norm_triton(
            x, weight, eps=1e-6, gain="1+w", profile="once"
        ),
        "geglu 64x6912": lambda: geglu_triton(gate, up, profile="once"),
        "rope 128x4x256": lambda: rope_triton(heads, cos, sin, pairing="halves", profile="once"),
        "matmul 64x64x64": lambda: linear(a, b, profile="once"),
    }


def seconds() -> dict[str, float]:
    """Best processor time of each case; the first pass, which also compiles and decodes, is not the best."""
    found = {}
    for name, call in cases().items():
        times: list[float] = []
        while (total := sum(times[1:])) < LONG or (len(times) < PASSES and total < ENOUGH):
            start = time.thread_time()
            call()
            times.append(time.thread_time() - start)
        found[name] = min(times)
    return found


def engine() -> dict[str, float]:
    """The same, where launches are executed as PTX."""
    from contract.engines.executed import Execution
    from contract.engines.triton_launch import capturing

    execution = Execution(0)
    with execution.watching(), capturing(execution.execute, fusion=False, configuration=0):
        return seconds()


def interpreter() -> dict[str, float]:
    """The same in a process of its own, where Triton interprets its kernels."""
    found = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    lines = (line.rsplit(" ", 1) for line in found.stdout.splitlines())
    return {name: float(value) for name, value in lines}


def give_tanh() -> None:
    """The interpreter has no libdevice: its tanh is NumPy's, the cheapest there is."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def tanh(x: Any) -> Any:
        return tl.tensor(TensorHandle(np.tanh(x.handle.data), x.handle.dtype), x.type)

    libdevice.tanh = tanh


def measure() -> list[tuple[str, float, float]]:
    """(name, interpreter's time / engine's, least value)."""
    ours, theirs = engine(), interpreter()
    return [
        (f"interpreter / PTX engine, {name}", theirs[name] / ours[name], LIMIT) for name in ours
    ]


if __name__ == "__main__":
    import torch

    from contract.allocator import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    give_tanh()
    for case, least in seconds().items():
        print(case, least)
