"""Whether a GPU is there that kernels can be launched on, and which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What NVIDIA's driver has while it is loaded.
_DRIVER = Path("/proc/driver/nvidia/version")
_GPUS = Path("/proc/driver/nvidia/gpus")


def has_driver() -> bool:
    """Whether a driver is loaded: a guess that costs nothing, so that no GPU is looked for in vain."""
    return _DRIVER.exists() or Path("/dev/dxg").exists()


def missing_device() -> str:
    """'' or why nothing can be launched on a GPU here."""
    if not has_driver():
        return "there is no GPU (no driver is loaded)"
    import torch

    if not torch.version.cuda:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return ""


def identity() -> list[str]:
    """What a result on a GPU depends on beside all else, as the driver says it: its version, and every GPU."""
    files = [_DRIVER, *sorted(_GPUS.glob("*/information"))]
    found = []
    for path in files:
        try:
            found += path.read_text(errors="replace").splitlines()
        except OSError:
            # a container may hide them
            continue
    return [line for line in found if line.startswith(("NVRM", "Model", "GPU UUID"))]


@dataclass(frozen=True)
class Gpu:
    """The GPU of this process.

    Attributes:
        where: the torch device.
        name: 'NVIDIA H200'.
        capability: compute capability, 90.
        synchronize: waits until all that was launched has ended; what a kernel did wrong is raised there.
        record: calls a function without arguments while its launches are recorded, not made; returns what the function
            returned, and the graph, whose `replay()` makes them.
    """

    where: Any
    name: str
    capability: int
    synchronize: Callable[[], None] = field(repr=False)
    record: Callable[[Callable[[], Any]], tuple[Any, Any]] = field(repr=False)

    @property
    def architecture(self) -> str:
        """`sm_90`."""
        return f"sm_{self.capability}"


def current() -> Gpu:
    """The GPU that torch uses in this process, which must have one."""
    import torch

    torch.cuda.init()
    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    where = torch.device("cuda", index)
    name = torch.cuda.get_device_name(index)
    return Gpu(where, name, 10 * major + minor, lambda: torch.cuda.synchronize(where), _record)


def _record(function: Callable[[], Any]) -> tuple[Any, Any]:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return result, graph
