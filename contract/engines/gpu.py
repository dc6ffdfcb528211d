"""The gpu engine: a launcher is called on tensors of a GPU, where its kernels run.

Operands lie there as they do on the host, with guard zones, gaps and poison, and what `torch.empty` gives is filled with
NaN patterns first: what a kernel leaves out must not be right because an earlier call was. Triton launches by its own
driver, CUDA C++ by contract.engines.cuda_driver; both hand over what they launched (contract.engines.triton_launch).

`run` and `measure` are called in a worker, as those of contract.engines.host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from contract import case as cases
from contract.compiled.architectures import ARCHITECTURES
from contract.compiled.measure import distinct, launches
from contract.declare import Launch
from contract.engines import devices, host
from contract.engines.allocations import watching
from contract.engines.capture import CapturedLaunch, LaunchError, NothingToSay, default_cache
from contract.engines.placement import Placed, on_device
from contract.engines.triton_launch import capturing
from contract.formats import Format
from contract.interval import Array
from contract.lazy import lazy

torch = lazy("torch")

# How errors of the runtime begin, whoever raises them.
_FAULTS = ("CUDA error", "Triton Error [CUDA]", "CUDA driver error")
# (kernel, target) whose launches could not be recorded in this process
_unrecordable: dict[tuple[str, str], str] = {}


def run(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run one launch of one target on one case: what contract.engines.host:run says, and

    Returns:
        "not_run": why nothing can be launched here; "compiled": with what and for what it was compiled, and on what it
        ran; "configurations": how many an autotuned kernel has; "notes": what is to be told of a launch that is good.
    """
    if why := unusable():
        return {"not_run": why}, {}
    session = Session(devices.current())
    launch, item = payload["launch"], host.target_of(payload)
    wrap: host.Wrap = session.called
    if launch["graph"]:
        key = (payload["kernel"], payload["target"]["name"])
        repeatable = bool(getattr(item, "repeatable", True))
        wrap = lambda call: session.replayed(call, key, repeatable)
    try:
        with ExitStack() as stack:
            capture = stack.enter_context(
                capturing(
                    session.launched,
                    target=session.gpu.capability,
                    fusion=item.fusion,
                    configuration=launch["configuration"],
                    native=True,
                )
            )
            stack.enter_context(watching(spoil))
            report, outputs = host.run(payload, arrays, put=session.put, wrap=wrap)
            if capture.failed is not None:
                # its launcher went on
                raise capture.failed
    except NothingToSay as error:
        return {"not_run": str(error), **session.facts()}, {}
    except Exception as error:
        if said := fault_of(error):
            # after most of them the process can launch nothing more
            return {"bad": said, "touched": True, **session.facts()}, {}
        raise
    report |= session.facts()
    report["touched"] = report["touched"] or session.broken
    report["configurations"] = max(capture.configurations.values(), default=1)
    if not session.launches and not report["bad"]:
        # what torch computed alone is no evidence for a kernel
        report["bad"] = "it launched no kernel: what torch computes is judged by engine host"
        report["unfit"] = True
    return report, outputs


def measure(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the driver says of every function of one launch of the contract.

    Returns:
        {"live": [{"function", "configuration", "place": as a record has them, "compiler", "ptxas", "architecture",
        "resources": those that the driver tells}]}; {"not_run": why} where nothing can be launched.
    """
    if why := unusable():
        return {"not_run": why}, {}
    session = Session(devices.current())
    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    item, launch = host.target_of(payload), Launch(**payload["launch"])

    def call() -> None:
        placed = host.placed_operands(kernel, arrays, launch.layout, "finite", session.put)
        item.call(**host.keywords_of(item.call, kernel, placed, payload["scalars"], launch))
        session.gpu.synchronize()

    how = {"target": session.gpu.capability, "native": True}
    try:
        found = launches(call, item.fusion, default_cache(), **how)
    except NothingToSay as error:
        return {"not_run": str(error)}, {}
    return {"live": [_live(one, place) for one, _, place in distinct(found)]}, {}


def unusable() -> str:
    """'' or why no kernel is judged on a GPU here."""
    if why := devices.missing_device():
        return why
    gpu = devices.current()
    if gpu.architecture not in ARCHITECTURES:
        known = ", ".join(name for name in ARCHITECTURES if name.startswith("sm_"))
        return f"{gpu.name} is {gpu.architecture}, which is not listed; kernels are compiled for {known}"
    return ""


def _live(launch: CapturedLaunch, place: int) -> dict[str, Any]:
    x, y, z = launch.block
    return {
        "function": launch.function,
        "configuration": list(launch.configuration),
        "place": place,
        "compiler": launch.compiler,
        "ptxas": launch.ptxas,
        "architecture": launch.target,
        "resources": {
            **launch.loaded,
            "dynamic_shared_bytes": launch.shared,
            "threads": x * y * z,
        },
    }


def fault_of(error: Exception) -> str:
    """What a launch did wrong, where the error says that; '' for any other error (memory that is out among them)."""
    name, text = type(error).__name__, str(error).strip()
    if isinstance(error, LaunchError):
        return text
    if name == "OutOfResources":
        # of Triton, when it loads a kernel
        return text
    if name == "AcceleratorError" or text.startswith(_FAULTS):
        return text.partition("\n")[0]
    return ""


def spoil(tensor: Any) -> None:
    """Fill memory that has no values yet with ones, which every format of floats reads as NaN."""
    storage = tensor.untyped_storage()
    if storage.nbytes() and tensor.device.type != "meta":
        torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).fill_(0xFF)


class Session:
    """One call: where its operands lie, what it launched, and what is to be said of it."""

    def __init__(self, gpu: devices.Gpu) -> None:
        self.gpu = gpu
        self.launches = 0
        self.compiled: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        # whether a recording failed, after which torch is not as it was
        self.broken = False
        # graphs own the memory of what they computed
        self._held: list[Any] = []

    def put(self, placed: Placed, fmt: Format) -> Placed:
        """An operand on the GPU."""
        return on_device(placed, fmt, self.gpu.where)

    def launched(self, launch: CapturedLaunch) -> None:
        """Note one launch, which was made."""
        self.launches += 1
        fusion = "on" if launch.fusion else "off"
        where = f"{launch.target} ({self.gpu.name})"
        self.compiled[f"{launch.compiler}, {where}, fusion {fusion}"] = None

    def facts(self) -> dict[str, Any]:
        """What a verdict says of how the code was made and run."""
        return {"compiled": list(self.compiled), "notes": list(self.notes)}

    def called(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The callable, after which all that it launched has ended."""

        def run_one(**arguments: Any) -> Any:
            result = call(**arguments)
            self.gpu.synchronize()
            return result

        return run_one

    def replayed(
        self, call: Callable[..., Any], key: tuple[str, str], repeatable: bool
    ) -> Callable[..., Any]:
        """The callable, called once, then recorded into a graph and replayed: both must give the same bits.

        A callable that cannot be recorded, as it waits for results, is called as it is, with a note.
        """
        eagerly = self.called(call)

        def run_one(**arguments: Any) -> Any:
            if key in _unrecordable:
                self._note(key)
                return eagerly(**arguments)
            tensors = [a for a in arguments.values() if isinstance(a, torch.Tensor)]
            kept = [tensor.untyped_storage().clone() for tensor in tensors]
            expected = bits_of([eagerly(**arguments), tensors])
            _restore(tensors, kept)
            before = self.launches
            try:
                result, graph = self.gpu.record(lambda: call(**arguments))
            except Exception as error:  # noqa: BLE001 - it was called a moment ago, and was good
                _unrecordable[key] = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.broken = True
                self._note(key)
                _restore(tensors, kept)
                return eagerly(**arguments)
            if self.launches == before:
                raise host.BadOutput("recorded into a graph, it launches no kernel")
            self._held.append(graph)
            graph.replay()
            self.gpu.synchronize()
            again = bits_of([result, tensors])
            if repeatable and not _equal(expected, again):
                raise host.BadOutput("a replayed graph gives other bits")
            return result

        return run_one

    def _note(self, key: tuple[str, str]) -> None:
        self.notes[f"not recorded into a graph: {_unrecordable[key]}"] = None


def bits_of(value: Any) -> list[Any]:
    """Copies of all tensors in a result, as bytes."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone().contiguous().reshape(-1).view(torch.uint8)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [bits for one in value for bits in bits_of(one)]
    return []


def _equal(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def _restore(tensors: list[Any], kept: list[Any]) -> None:
    for tensor, storage in zip(tensors, kept, strict=True):
        tensor.untyped_storage().copy_(storage)


__all__ = ["Session", "measure", "run"]
