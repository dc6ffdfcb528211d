"""Launches of machine code on an NVIDIA GPU, by its driver: what `contract.engines.cuda_launch` needs of libcuda.

Every call's return code is looked at. Source: CUDA Driver API reference (cuda.h), sections Module Management and
Execution Control, whose numbers of attributes stand below. The context is torch's: it is current once a tensor lies on
the device.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.engines.capture import LaunchError, MissingCompiler

if TYPE_CHECKING:
    from contract.engines.cuda_launch import Kernel

_LIBRARY = "libcuda.so.1"
#: What a driver says of a loaded function -> CUfunction_attribute.
ATTRIBUTES = {
    "max_threads": 0,
    "static_shared_bytes": 1,
    "local_bytes": 3,
    "registers": 4,
}
# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8
# What a block may have of dynamic shared memory without asking.
_SHARED_DEFAULT = 48 * 1024


class DeviceFault(LaunchError):
    """A call that the driver refused, or that a fault of a kernel ended; the message names call and code."""


@dataclass(frozen=True)
class Place:
    """Where to launch: a device's index, its compute capability (90) and a stream's handle."""

    index: int
    capability: int
    stream: int

    def current(self) -> AbstractContextManager[Any]:
        """A context in which the device, and torch's context on it, is the thread's."""
        import torch

        return torch.cuda.device(self.index)


class Driver:
    """libcuda, or what stands for it: its functions return a code, 0 where all is well."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            DeviceFault: a code other than 0, with its name and meaning.
        """
        code = getattr(self.library, name)(*arguments)
        if code:
            raise DeviceFault(
                f"{name}: {self._text('cuGetErrorName', code) or 'error'} ({code}):"
                f" {self._text('cuGetErrorString', code) or 'unknown to this driver'}"
            )

    def _text(self, name: str, code: int) -> str:
        text = ctypes.c_char_p()
        wrong = getattr(self.library, name)(code, ctypes.byref(text))
        return "" if wrong or text.value is None else text.value.decode(errors="replace")

    def load(self, image: bytes, entry: str) -> Function:
        """One entry of a cubin, loaded into the current context for as long as the process lives."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return Function(self, function)


class Function:
    """A loaded function."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p) -> None:
        self.driver, self.handle = driver, handle
        # dynamic shared memory that was asked for
        self._allowed = _SHARED_DEFAULT

    def attributes(self) -> dict[str, int]:
        """What the driver says of it: see ATTRIBUTES."""
        return {name: self._attribute(number) for name, number in ATTRIBUTES.items()}

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.driver.call("cuFuncGetAttribute", ctypes.byref(value), number, self.handle)
        return value.value

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        parameters: Sequence[bytes],
    ) -> None:
        """Put a launch into a stream; what it does wrong there is told at the stream's next synchronisation."""
        if shared > self._allowed:
            self.driver.call("cuFuncSetAttribute", self.handle, _MAX_DYNAMIC_SHARED, shared)
            self._allowed = shared
        values = [ctypes.create_string_buffer(data, len(data)) for data in parameters]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.driver.call(
            "cuLaunchKernel",
            self.handle,
            *(ctypes.c_uint(n) for n in (*grid, *block, shared)),
            ctypes.c_void_p(stream),
            addresses,
            None,
        )


@functools.cache
def driver() -> Driver:
    """The driver of this machine.

    Raises:
        MissingCompiler: it has none.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise MissingCompiler(f"there is no driver of NVIDIA here: {error}") from error
    return Driver(library)


def place_of(kernel: str, tensors: Mapping[str, Any]) -> Place:
    """The device on which all tensors of a launch lie, and torch's current stream there.

    Raises:
        LaunchError: they lie on none, or on several.
    """
    devices = {name: str(tensor.device) for name, tensor in tensors.items()}
    found = sorted(set(devices.values()))
    if not any(name.startswith("cuda") for name in found):
        raise LaunchError(
            f"{kernel}: there is no device to launch on; the ptx engine runs it: contract run NAME --engine ptx"
        )
    if len(found) > 1:
        said = ", ".join(f"{name} on {where}" for name, where in devices.items())
        raise LaunchError(f"{kernel}: its tensors lie on several devices: {said}")
    import torch

    device = torch.device(found[0])
    major, minor = torch.cuda.get_device_capability(device)
    stream = torch.cuda.current_stream(device)
    return Place(int(device.index or 0), 10 * major + minor, int(stream.cuda_stream))


def loaded(kernel: Kernel, entry: str, place: Place, cache: Path) -> Function:
    """A kernel's function on a device, compiled and loaded once; the place is current.

    Raises:
        DeviceFault: the driver does not take the code.
    """
    return _loaded(kernel, entry, place.index, place.capability, cache)


@functools.cache
def _loaded(kernel: Kernel, entry: str, index: int, capability: int, cache: Path) -> Function:
    # the index is in the key: what is loaded is loaded into one context
    del index
    image, _ = kernel.compiled(f"sm_{capability}", "cubin", cache)
    return driver().load(image, entry)
