"""The ptx engine: a launcher is called as on the host, and the compiled code of every launch is executed on the CPU.

The launcher is the client's own, on CPU tensors. What it launches is captured (contract.engines.triton_launch), and its
PTX runs in NumPy (contract.engines.ptx) on the tensors' own memory before the launcher goes on; so it may launch several
kernels, with torch calls between them.

`run` is called in a worker, as contract.engines.host:run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from contract import case as cases
from contract import formats
from contract.allocator import keep_freed_memory
from contract.compiled import architectures
from contract.engines import host
from contract.engines.allocations import tensors_in, watching
from contract.engines.capture import CapturedLaunch, LaunchError, NothingToSay
from contract.engines.placement import Placed
from contract.engines.ptx.decoded import Program
from contract.engines.ptx.faults import Malformed, PtxFault, Unsupported
from contract.engines.ptx.machine import launch as execute
from contract.engines.ptx.memory import GlobalMemory
from contract.engines.ptx.program import decode
from contract.engines.ptx.text import parse
from contract.engines.spans import Spans, extent
from contract.engines.triton_launch import capturing
from contract.interval import Array
from contract.lazy import lazy
from contract.worker_child import progress

torch = lazy("torch")


# what torch says where it has no device
_ASKS_TORCH = (
    "not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "no NVIDIA driver",
    "torch.cuda.Stream requires CUDA support",
    "Tried to instantiate dummy base class",
)


def run(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run one launch of one target on one case: what contract.engines.host:run says, and

    Returns:
        "not_run": why the code cannot be executed here; "compiled": with what and for what it was compiled;
        "launched": (entry, digest of its PTX) of each launch, and where the payload asks for "texts" digest -> PTX;
        "approximate": whether instructions were executed that have a bound and no value; "communicates": whether blocks
        of a grid answered to each other; "configurations": how many an autotuned kernel has; "configured":
        which of them ran, in words.
    """
    # NumPy's arrays, not the kernel's: what a kernel may touch are the tensors of its launch
    keep_freed_memory()
    launch = payload["launch"]
    execution = Execution(launch["skew"], payload.get("mutant"), blocks=launch["blocks"])
    try:
        with ExitStack() as stack:
            stack.enter_context(execution.watching())
            capture = stack.enter_context(
                capturing(
                    execution.execute,
                    fusion=host.target_of(payload).fusion,
                    configuration=launch["configuration"],
                    timing=True,
                )
            )
            execution.chosen = capture.chosen
            report, outputs = host.run(payload, arrays, put=execution.placed, wrap=execution.taking)
    except Exception as error:
        said = told(error)
        if not said:
            raise
        return {**said, **execution.facts()}, {}
    report |= execution.facts()
    if execution.failed is not None:
        # a launcher that goes on after a launch that failed
        failed = {"bad": f"{type(execution.failed).__name__}: {execution.failed}"}
        return {**(told(execution.failed) or failed), **execution.facts()}, {}
    if payload.get("texts"):
        report["texts"] = execution.texts
    report["configurations"] = max(capture.configurations.values(), default=1)
    if not capture.launches and not report["bad"]:
        # what torch computed alone is no evidence for a kernel
        report["bad"] = "it launched no kernel: what torch computes is judged by engine host"
        report["unfit"] = True
    elif not report["bad"] and not execution.used and _returns(payload, outputs):
        report["bad"], report["unfit"] = (
            "nothing of what it launched is in its result: torch computed that alone",
            True,
        )
    return report, outputs


def _returns(payload: dict[str, Any], outputs: Mapping[str, Array]) -> bool:
    """Whether there is a result, and it lies in memory that the callable made: not in an operand that it writes."""
    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    if any(operand.role == "inout" for operand in kernel.outputs()):
        return False
    return any(bits.size for bits in outputs.values())


def told(error: Exception) -> dict[str, Any]:
    """What a launch that failed means: {"not_run"} nothing of the kernel, {"bad"} that it is wrong; {} for another error."""
    if isinstance(error, Unsupported | NothingToSay):
        return {"not_run": str(error)}
    if any(words in str(error) for words in _ASKS_TORCH):
        return {
            "bad": f"{error}: the launcher asks torch for a CUDA device, and its operands lie on the CPU here; let it ask the"
            " operands, or triton.runtime.driver.active"
        }
    if isinstance(error, AssertionError) and (line := _asserts_cuda(error)):
        return {
            "bad": f"`{line}`: the launcher refuses operands that lie on the CPU, which is where they are executed; leave that"
            " to the launch, which refuses them on a device"
        }
    # Triton's own, for what a device would refuse
    refused = type(error).__name__ == "OutOfResources"
    if refused or isinstance(error, PtxFault | Malformed | LaunchError):
        return {"bad": str(error)}
    return {}


def _asserts_cuda(error: Exception) -> str:
    """The line of an assertion that asks for operands on a GPU."""
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return line if "is_cuda" in line or ("cuda" in line and "device" in line) else ""


class Execution:
    """The launches of one call: the memory that they share, and what is to be said of them.

    `mutant`: {"entry", "digest", "text"}: the text that is executed in the place of the entry's PTX of that digest.
    `skew`, `blocks`: those of contract.engines.ptx.machine:launch.
    """

    def __init__(
        self, skew: int, mutant: Mapping[str, Any] | None = None, blocks: str = "together"
    ) -> None:
        self.skew, self.mutant, self.blocks = skew, mutant, blocks
        self.launched: dict[tuple[str, str], None] = {}
        self.texts: dict[str, str] = {}
        self.memory = GlobalMemory()
        self.compiled: dict[str, None] = {}
        self.approximate = self.communicates = False
        # of autotuned kernels, the configuration in words
        self.chosen: Mapping[str, str] = {}
        # the first launch that could not be executed
        self.failed: Exception | None = None
        # storages that the memory shows: alive, so that no other tensor comes to lie there
        self.held: dict[int, Any] = {}
        # storages of the operands, and those that a kernel wrote
        self.operands: set[int] = set()
        self.wrote: set[int] = set()
        # whether torch, or the result, has read what a kernel was given to write
        self.used = False
        # storages that torch allocated without a value, and what it wrote of them since
        self.fresh: dict[int, tuple[Any, Spans]] = {}
        # what torch wrote, and read nothing of, since the last launch that was given the storage
        self.over: dict[int, Spans] = {}

    def execute(self, launch: CapturedLaunch) -> None:
        """Execute one captured launch on the memory of its tensors."""
        try:
            self._execute(launch)
        except Exception as error:
            self.failed = self.failed or error
            raise

    def _execute(self, launch: CapturedLaunch) -> None:
        fusion = "on" if launch.fusion else "off"
        self.compiled[f"{launch.compiler}, {launch.target}, fusion {fusion}"] = None
        for name, tensor in (*launch.tensors.items(), *launch.scratch.items()):
            self._show(name, tensor)
        program = program_of(self._text(launch), launch.entry)
        _check_shared(program, launch)
        done = execute(
            program,
            launch.grid,
            launch.block,
            launch.parameters,
            self.memory,
            dynamic_shared=launch.shared,
            skew=self.skew,
            blocks=self.blocks,
            # a mutant that never ends has no progress to report
            progress=None if self.mutant else lambda *_: progress(),
        )
        self.wrote.update(done.written)
        self.approximate = self.approximate or bool(done.approximate) or done.contended
        self.communicates = self.communicates or done.communicates

    def _text(self, launch: CapturedLaunch) -> str:
        digest = digest_of(launch.ptx)
        self.launched[launch.entry, digest] = None
        self.texts[digest] = launch.ptx
        mutant = self.mutant
        if mutant and (mutant["entry"], mutant["digest"]) == (launch.entry, digest):
            return str(mutant["text"])
        return launch.ptx

    def _show(self, name: str, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        self.over.pop(address, None)
        if not size or address in self.held:
            return
        self.held[address] = storage
        view = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        _, written = self.fresh.get(address, (None, None))
        self.memory.add(address, view, name, initialised=written is None)
        for span in () if written is None else written.runs:
            self.memory.initialise(address, span)

    def facts(self) -> dict[str, Any]:
        """What a verdict says of how the code was made and run."""
        launched = [list(one) for one in self.launched]
        return {
            "compiled": list(self.compiled),
            "launched": launched,
            "configured": ", ".join(self.chosen.values()),
            "approximate": self.approximate,
            "communicates": self.communicates,
        }

    def watching(self) -> AbstractContextManager[Any]:
        """A torch mode that notes which storages were allocated without values, and which torch wrote since."""
        return watching(self.allocated, self.written, self.read)

    def placed(self, operand: Placed, fmt: formats.Format) -> Placed:
        """Note an operand; it stays where it is."""
        self.operands.add(operand.tensor.untyped_storage().data_ptr())
        return operand

    def taking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The callable, whose results are read."""

        def called(**arguments: Any) -> Any:
            result = call(**arguments)
            for tensor in tensors_in(result.values() if isinstance(result, Mapping) else [result]):
                self.read(tensor)
            return result

        return called

    def read(self, tensor: Any) -> None:
        """A tensor that torch reads, or that is a result."""
        if self.used or not self.held or not _plain(tensor):
            return
        address = tensor.untyped_storage().data_ptr()
        start, end, _ = extent(tensor)
        if address in self.over and self.over[address].cover(start, end):
            return
        # a kernel may rightly write nothing to what it is given, as where all rows are masked; an operand, it only reads
        self.used = address in self.wrote or (address in self.held and address not in self.operands)

    def allocated(self, tensor: Any) -> None:
        """A tensor whose contents mean nothing yet."""
        storage = tensor.untyped_storage()
        self.fresh[storage.data_ptr()] = storage, Spans()

    def written(self, tensor: Any, alone: bool) -> None:
        """A tensor that torch wrote; `alone`: every element, and it read none.

        Of one that does not lie in one run of bytes all of its storage counts as having a value: nobody knows which part.
        """
        if not _plain(tensor):
            return
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        start, end, dense = extent(tensor)
        if alone and dense and address in self.held:
            self.over.setdefault(address, Spans()).add(start, end)
        if address not in self.fresh:
            return
        written = self.fresh[address][1]
        written.add(*((start, end) if dense else (0, size)))
        if whole := written.cover(0, size):
            del self.fresh[address]
        if address in self.held:
            self.memory.initialise(address, None if whole else (start, end))


def _plain(tensor: Any) -> bool:
    """Whether it is one that a launch here could be given."""
    return bool(tensor.device.type == "cpu" and tensor.layout == torch.strided)


def _check_shared(program: Program, launch: CapturedLaunch) -> None:
    """Refuse what ptxas or a driver refuses of a block's shared memory."""
    limits = architectures.find(launch.target)
    if not isinstance(limits, architectures.Cuda):
        return
    static, both = program.shared_bytes, program.shared_total(launch.shared)
    if static > limits.shared_default:
        raise LaunchError(
            f"{launch.function}: {static:,} bytes of static shared memory; ptxas takes {limits.shared_default:,} at most,"
            " what is more must be dynamic"
        )
    if both > limits.shared_opt_in:
        raise LaunchError(
            f"{launch.function}: {both:,} bytes of shared memory, static and dynamic; {launch.target} has"
            f" {limits.shared_opt_in:,} for a block"
        )


@functools.lru_cache(256)
def digest_of(text: str) -> str:
    """What tells one PTX text from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.lru_cache(64)
def program_of(text: str, entry: str) -> Program:
    """The decoded entry of a PTX text; every launch of a kernel has the same."""
    return decode(parse(text), entry)


__all__ = ["Execution", "run"]
