"""A contract whose kernel runs on a GPU that is none: stand-ins for torch's device, its graphs, nvcc and libcuda.

`install` puts them in place; loaded as a suite the module does that itself, in judge and worker. Its "machine code" is
FakeLibrary's: a bf16 operand is doubled, row by row.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contract import registry
from contract.declare import Contract, Profile, output, tensor
from contract.engines import cuda_driver, cuda_launch, devices, nvcc
from contract.engines.cuda_launch import Kernel

PTX = """
.visible .entry doubled(.param .u64 x, .param .u64 out, .param .u32 rows, .param .u32 d, .param .u32 stride)
{ ret; }
"""
ATTRIBUTES = {0: 1024, 1: 1024, 3: 0, 4: 18}
NAMES = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS", 1: b"CUDA_ERROR_INVALID_VALUE"}


class FakeLibrary:
    """Stands for libcuda: notes every call; `codes` has those that a function returns."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.codes: dict[str, int] = {}
        self.recording: list[Callable[[], None]] | None = None
        # what becomes of a launch: x, out -> written into out
        self.kernel: Callable[[Any, Any], None] = lambda x, out: out.copy_(x + x)

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name not in ("cuGetErrorName", "cuGetErrorString"):
                self.calls.append((name, arguments))
            if code := self.codes.get(name, 0):
                return code
            return getattr(type(self), f"do_{name}", lambda *_: 0)(self, *arguments) or 0

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of a function."""
        return [arguments for called, arguments in self.calls if called == name]

    def do_cuGetErrorName(self, code: int, text: Any) -> None:
        text._obj.value = NAMES[code]

    def do_cuGetErrorString(self, code: int, text: Any) -> None:
        text._obj.value = b"what it means"

    def do_cuFuncGetAttribute(self, value: Any, number: int, handle: Any) -> None:
        value._obj.value = ATTRIBUTES[number]

    def do_cuLaunchKernel(self, handle: Any, *more: Any) -> None:
        addresses = more[-2]
        x, out = (ctypes.c_uint64.from_address(a).value for a in addresses[:2])
        rows, d, stride = (ctypes.c_int32.from_address(a).value for a in addresses[2:])
        launch = partial(self.kernel, _rows(x, rows, d, stride), _rows(out, rows, d, d))
        if self.recording is None:
            launch()
        else:
            self.recording.append(launch)


def _rows(address: int, rows: int, d: int, stride: int) -> Any:
    memory = (ctypes.c_uint8 * (2 * ((rows - 1) * stride + d))).from_address(address)
    return torch.frombuffer(memory, dtype=torch.bfloat16).as_strided((rows, d), (stride, 1))


LIBRARY = FakeLibrary()


class FakePlace(cuda_driver.Place):
    """A device that is current as it is."""

    def current(self) -> Any:
        return contextlib.nullcontext()


class Graph:
    def __init__(self, launches: list[Callable[[], None]]) -> None:
        self.launches = launches

    def replay(self) -> None:
        for launch in self.launches:
            launch()


def synchronize() -> None:
    """Wait for the GPU: refused while launches are recorded, as CUDA refuses it."""
    if LIBRARY.recording is not None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def record(function: Callable[[], Any]) -> tuple[Any, Graph]:
    made: list[Callable[[], None]] = []
    LIBRARY.recording = made
    try:
        return function(), Graph(made)
    finally:
        LIBRARY.recording = None


def compiled(self: Kernel, architecture: str, form: str, cache: Path) -> tuple[bytes, str]:
    return (PTX.encode() if form == "ptx" else f"cubin of {architecture}".encode()), ""


def install(put: Callable[[Any, str, Any], None] = setattr) -> FakeLibrary:
    """A new library behind a GPU of compute capability 9.0."""
    LIBRARY.__init__()  # type: ignore[misc]
    gpu = devices.Gpu(torch.device("cpu"), "Fake 90", 90, synchronize, record)
    fake = cuda_driver.Driver(LIBRARY)
    put(devices, "missing_device", lambda: "")
    put(devices, "current", lambda: gpu)
    put(cuda_driver, "driver", lambda: fake)
    put(cuda_driver, "place_of", lambda *_: FakePlace(0, 90, 7))
    put(Kernel, "compiled", compiled)
    put(nvcc, "version", lambda: "13.0.88")
    put(nvcc, "ptxas", lambda: Path("ptxas"))
    put(cuda_launch, "tool_version", lambda _: "13.0.88")
    cuda_driver._loaded.cache_clear()
    return LIBRARY


KERNEL = Kernel(Path(__file__), "doubled")


def launched(x: Any) -> Any:
    """x + x on the GPU."""
    rows, d = x.shape
    out = torch.empty(rows, d, dtype=x.dtype, device=x.device)
    stride = x.stride(0) if rows > 1 else d
    KERNEL.launch(rows, 32, (x, out, np.int32(rows), np.int32(d), np.int32(stride)))
    return out


registry.register(
    Contract(
        name="doubled",
        family="sums",
        reference=lambda r, x: r.round("out", x + x),
        operands=(tensor("x", "rows d"), output("out", "rows d")),
        profiles=(Profile("once", {"out": "bf16"}),),
        row_dims=("rows",),
        shapes=({"rows": 1, "d": 4}, {"rows": 3, "d": 40}),
        stress=({"d": 8},),
        not_applicable={"exact": "a test"},
    )
)


@registry.implementation("doubled", name="cuda", engine="ptx")
def doubled_cuda(x: Any) -> Any:
    return launched(x)


if os.environ.get("FAKE_GPU"):
    install()
