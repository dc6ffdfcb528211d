"""A launch of compiled code as facts, and the context in which launches are handed over: instead of run, or after it.

`capturing` (contract.engines.triton_launch) opens the context; launchers of Triton and of CUDA C++ look for it here and
give each launch to its sink. Nothing here imports torch, triton or a compiler.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.errors import ContractError

# CUDA C++ Programming Guide, compute capabilities: x, y and z of a grid, and threads of a block.
_GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
_BLOCK_LIMITS = (1_024, 1_024, 64)
_BLOCK_THREADS = 1_024


class LaunchError(ContractError):
    """A launch that a device would refuse, or that cannot be captured; the message says why, and what to do."""


class NothingToSay(LaunchError):
    """The kernel cannot be executed here, which is no fault of it: the outcome is not_run."""


class MissingCompiler(NothingToSay):
    """A compiler that is not there."""


class NeedsLater(NothingToSay):
    """Code that compiles for a later architecture, and not for the one that is executed."""


@dataclass(frozen=True)
class CapturedLaunch:
    """One launch: what a device would have been given.

    Attributes:
        language: 'triton' or 'cuda'.
        function: the kernel as its author names it.
        entry: the name of the entry in `ptx`, the text that would run.
        grid, block: x, y, z: blocks and threads.
        shared: bytes of dynamic shared memory.
        parameters: the kernel's parameter block, each parameter at its offset, scratch pointers included.
        tensors: argument name -> tensor whose address stands in the block. They are alive as long as this is.
        scratch: name -> memory that the launch asks for, allocated here; nothing wrote it yet.
        target: what the PTX is for, 'sm_80'.
        fusion: whether the compiler was allowed to contract a multiply and an add.
        compiler, ptxas: the versions, 'triton 3.9.0', '12.9.86'.
        options: what the compiler was told.
        configuration: which of the kernel's own configurations this is, and their number; (0, 1) without autotuning.
        source: what the launch can be compiled again from (a triton ASTSource, a contract.engines.cuda_launch.Kernel).
        loaded: what a driver says of the function that it launched: {"registers": 32, "local_bytes": 0}; empty where the
            launch was not made.
    """

    language: str
    function: str
    entry: str
    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: bytes
    tensors: Mapping[str, Any]
    target: str
    fusion: bool
    compiler: str
    ptxas: str
    scratch: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    configuration: tuple[int, int] = (0, 1)
    source: Any = None
    loaded: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_warps(self) -> int:
        """Warps of a block, the last one perhaps not full."""
        x, y, z = self.block
        return -(-x * y * z // 32)


Sink = Callable[[CapturedLaunch], None]


@dataclass
class Capture:
    """An open context.

    Attributes:
        sink: is called with every launch, in order.
        target: compute capability that kernels are compiled for: 80.
        fusion: True or False for every kernel; None leaves it to each kernel's author.
        configuration: which configuration of each autotuned kernel runs, counted round: 3 is 1 where there are two.
        cache: folder of what was compiled.
        native: each launch is made on a device, and handed to the sink after that.
        configurations: autotuned kernel -> how many configurations it had at its launch.
        chosen: autotuned kernel -> the configuration that runs, in words: 'BLOCK=512 num_warps=8'.
        launches: how many launches the sink was given.
        failed: the first launch that could not be made, whether its launcher goes on or not.
    """

    sink: Sink
    target: int
    fusion: bool | None
    configuration: int
    cache: Path
    native: bool = False
    configurations: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    launches: int = 0
    failed: Exception | None = None

    @contextmanager
    def making(self) -> Iterator[None]:
        """A launch that is being made on a device."""
        try:
            yield
        except Exception as error:
            self.failed = self.failed or error
            raise

    def hand(self, launch: CapturedLaunch) -> None:
        """Give a launch to the sink, once it is one that a device takes; an empty grid is no launch."""
        check_size(launch.function, launch.grid, launch.block)
        if 0 in launch.grid:
            return
        self.launches += 1
        self.sink(launch)


_lock = threading.Lock()
_open: Capture | None = None


def active() -> Capture | None:
    """The open context, or None."""
    return _open


@contextmanager
def opened(capture: Capture) -> Iterator[Capture]:
    """Make a context the open one; one at a time in a process."""
    global _open
    with _lock:
        if _open is not None:
            raise LaunchError("launches are being captured already: close that context first")
        _open = capture
    try:
        yield capture
    finally:
        _open = None


def default_cache() -> Path:
    """Where compiled code is kept unless a caller says."""
    return _cache_of(Path.cwd())


@functools.cache
def _cache_of(folder: Path) -> Path:
    """The same for a working folder: settings are read once, not at every call of a launcher."""
    from contract.store import find_root

    return find_root(folder) / "compiled"


def extent(name: str, what: str, sizes: Any) -> tuple[int, int, int]:
    """A grid or block as three numbers, ones behind what is given."""
    given = sizes if isinstance(sizes, Sequence) else (sizes,)
    try:
        numbers = [int(n) for n in given]
    except (TypeError, ValueError):
        raise LaunchError(f"{name}: {what} {sizes!r} is not one to three numbers") from None
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0:
        raise LaunchError(f"{name}: {what} {sizes!r} is not one to three numbers of at least 0")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def check_size(name: str, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    """Refuse what CUDA refuses at every launch, whatever the kernel."""
    x, y, z = block
    if not 1 <= x * y * z <= _BLOCK_THREADS or any(
        n > limit for n, limit in zip(block, _BLOCK_LIMITS, strict=True)
    ):
        raise LaunchError(
            f"{name}: a block of {block} threads; a device takes 1 to {_BLOCK_THREADS:,} in all, {_BLOCK_LIMITS} at most"
        )
    if any(n > limit for n, limit in zip(grid, _GRID_LIMITS, strict=True)):
        raise LaunchError(f"{name}: a grid of {grid} blocks; a device takes {_GRID_LIMITS} at most")


def pack_parameters(
    name: str, places: Sequence[tuple[int, int]], values: Sequence[tuple[str, bytes]]
) -> bytes:
    """The parameter block: each value at its place.

    Args:
        name: of the kernel, for messages.
        places: (offset, size) of each parameter of the entry.
        values: (argument, its bytes), in the entry's order.
    """
    if len(places) != len(values):
        given = ", ".join(argument for argument, _ in values)
        raise LaunchError(
            f"{name}: the entry has {len(places)} parameters, the launch {len(values)} arguments ({given})"
        )
    block = bytearray(max((offset + size for offset, size in places), default=0))
    for (offset, size), (argument, data) in zip(places, values, strict=True):
        if len(data) != size:
            raise LaunchError(
                f"{name}: {argument} has {len(data)} bytes, the entry's parameter {size}"
            )
        block[offset : offset + size] = data
    return bytes(block)


def pointer(address: int) -> bytes:
    """An address as a parameter."""
    return struct.pack("<Q", address)
