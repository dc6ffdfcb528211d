"""Launches of CUDA C++ kernels: on CPU tensors captured, on those of a device made.

    kernel = Kernel(Path(__file__).with_suffix(".cu"), "softcap")

    def softcap_cuda(x, *, cap):
        out = torch.empty_like(x)
        kernel.launch(grid=-(-x.numel() // 256), block=256, arguments=(x, out, np.int32(x.numel()), np.float32(cap)))
        return out

Inside `contract.engines.triton_launch.capturing` the source is compiled for the context's target, the arguments are
packed as the entry of the PTX wants them, and the launch goes to the sink. Outside, and where the context says that
launches are made, it is compiled for the device of its tensors and launched there (contract.engines.cuda_driver).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contract import device_files
from contract.engines import cuda_driver, nvcc
from contract.engines.capture import (
    CapturedLaunch,
    LaunchError,
    NeedsLater,
    active,
    check_size,
    default_cache,
    extent,
    pack_parameters,
    pointer,
)
from contract.engines.nvcc import CompileError
from contract.engines.pointers import tensors_at
from contract.engines.ptx_entries import entries
from contract.engines.tools import tool_version
from contract.errors import DeclarationError

#: Architectures that a source may have been written for.
LATER = ("sm_90a", "sm_100a")


class _Built(NamedTuple):
    """A kernel's code for one target: `places` are (offset, size) of the entry's parameters."""

    target: str
    entry: str
    ptx: str
    places: Sequence[tuple[int, int]]
    cache: Path


@dataclass(frozen=True)
class Kernel:
    """One kernel of a .cu file.

    Attributes:
        source: the file; a text is its path.
        name: the kernel as the source names it; with `extern "C"` it is the entry's name.
        options: of nvcc, as it is built elsewhere: nvcc contracts multiplications and additions unless -fmad=false says
            no, and without that the assembler may contract what stands apart in the PTX.
        headers: files and folders that the source includes by name.
    """

    source: Path
    name: str
    options: tuple[str, ...] = ()
    headers: tuple[Path, ...] = field(default=())

    def __post_init__(self) -> None:
        for path in (self.source, *self.headers):
            # CUDA C++ itself has many lines
            if not isinstance(path, str | os.PathLike) or "\n" in str(path):
                raise DeclarationError(
                    f"kernel {self.name!r}: the path of a .cu file is needed, not {str(path)[:40]!r}; write the source to a file"
                )
        object.__setattr__(self, "source", Path(self.source))
        object.__setattr__(self, "headers", tuple(Path(path) for path in self.headers))
        device_files.declare((self.source, *self.headers))

    @property
    def fusion(self) -> bool:
        """Whether a multiply and an add may be contracted; nvcc's own default is yes."""
        said = [o for o in self.options if o.lstrip("-").startswith(("fmad", "use_fast_math"))]
        return not said or not said[-1].endswith(("=false", "=False", "=0"))

    def compiled(self, architecture: str, form: str, cache: Path) -> tuple[bytes, str]:
        """PTX or machine code of the whole source, and what the compiler said."""
        return nvcc.compiled(
            self.source, architecture, form, options=self.options, headers=self.headers, cache=cache
        )

    def launch(self, grid: Any, block: Any, arguments: Sequence[Any], shared: int = 0) -> None:
        """Launch on a grid of blocks.

        Args:
            grid, block: a number, or up to three.
            arguments: tensors; numbers of a stated size (NumPy scalars, ctypes); bytes for what is passed by value, in
                which addresses of tensors that are alive are found.
            shared: bytes of dynamic shared memory.

        Raises:
            LaunchError: nothing captures the launch, and the tensors lie on no device; an argument that does not fit its
                parameter.
            DeviceFault: the driver refuses it.
        """
        capture = active()
        tensors: dict[str, Any] = {}
        values = [
            (f"argument {i}", self._packed(f"argument {i}", value, tensors))
            for i, value in enumerate(arguments)
        ]
        tensors |= tensors_at({name: data for name, data in values if name not in tensors})
        sizes = extent(self.name, "grid", grid), extent(self.name, "block", block)
        if capture is not None and not capture.native:
            built = self._built(capture.target, shared, capture.cache)
            capture.hand(self._facts(built, sizes, shared, tensors, values))
            return
        where = cuda_driver.place_of(self.name, tensors)
        built = self._built(where.capability, shared, capture.cache if capture else None)
        facts = self._facts(built, sizes, shared, tensors, values)
        check_size(self.name, *sizes)
        if 0 in facts.grid:
            return
        data = [data for _, data in values]
        with where.current(), capture.making() if capture else contextlib.nullcontext():
            function = cuda_driver.loaded(self, built.entry, where, built.cache)
            function.launch(facts.grid, facts.block, shared, where.stream, data)
        if capture is not None:
            capture.hand(replace(facts, loaded=function.attributes()))

    def _built(self, capability: int, shared: int, cache: Path | None) -> _Built:
        """The kernel's PTX for a compute capability, once it is one on which the launch has room."""
        folder = cache or default_cache()
        target = f"sm_{capability}"
        try:
            ptx = self.compiled(target, "ptx", folder)[0].decode()
        except CompileError as error:
            for later in LATER:
                with contextlib.suppress(CompileError):
                    self.compiled(later, "ptx", folder)
                    raise NeedsLater(
                        f"{self.name} compiles for {later} and not for {target}, which is what is executed: {error}"
                    ) from error
            raise
        found = entries(ptx)
        entry = self._entry(list(found))
        self._check_shared(capability, shared)
        return _Built(target, entry, ptx, found[entry], folder)

    def _facts(
        self,
        built: _Built,
        sizes: tuple[tuple[int, int, int], tuple[int, int, int]],
        shared: int,
        tensors: dict[str, Any],
        values: Sequence[tuple[str, bytes]],
    ) -> CapturedLaunch:
        return CapturedLaunch(
            language="cuda",
            function=self.name,
            entry=built.entry,
            ptx=built.ptx,
            grid=sizes[0],
            block=sizes[1],
            shared=shared,
            parameters=pack_parameters(self.name, built.places, values),
            tensors=tensors,
            target=built.target,
            fusion=self.fusion,
            compiler=f"nvcc {nvcc.version()}",
            ptxas=tool_version(nvcc.ptxas()),
            options={"options": list(self.options)},
            source=self,
        )

    def _entry(self, names: Sequence[str]) -> str:
        """The entry of that name, as written or mangled as C++ does."""
        mangled = f"_Z{len(self.name)}{self.name}"
        found = [n for n in names if n == self.name] or [n for n in names if n.startswith(mangled)]
        if len(found) != 1:
            raise LaunchError(
                f"{self.source.name}: {len(found)} entries are named {self.name!r}; the source has"
                f' {", ".join(names) or "none"}; declare it extern "C" or name one of these'
            )
        return found[0]

    def _check_shared(self, capability: int, shared: int) -> None:
        from contract.compiled.architectures import cuda

        limit = cuda(capability).shared_opt_in
        if not 0 <= shared <= limit:
            raise LaunchError(
                f"{self.name}: {shared:,} bytes of dynamic shared memory; sm_{capability} has 0 to {limit:,} for a block"
            )

    def _packed(self, name: str, value: Any, tensors: dict[str, Any]) -> bytes:
        """One argument's bytes; a tensor's address."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.generic):
            return value.tobytes()
        if isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
            return bytes(value)
        if value is None:
            return pointer(0)
        if hasattr(value, "data_ptr"):
            tensors[name] = value
            return pointer(value.data_ptr())
        raise LaunchError(
            f"{self.name}: {name} is {value!r} ({type(value).__name__}), whose size is not stated;"
            " give a tensor, a NumPy scalar such as np.int32(3), or a ctypes value"
        )
