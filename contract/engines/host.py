"""The host engine: a callable run in the worker process, with its operands placed, its results checked.

`run` and `measure` are called in a worker (see contract.worker): JSON and arrays in, JSON and arrays out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from contract import case as cases
from contract import formats, registry
from contract.case import Case, Kernel
from contract.declare import Control, Implementation, Launch, served
from contract.engines import state
from contract.engines.placement import Placed, place, to_bits, torch_type
from contract.errors import ContractError
from contract.interval import Array
from contract.lazy import lazy

torch = lazy("torch")


class BadOutput(ContractError):
    """A result of the wrong type, shape or place; its message is the verdict."""


class Unfit(BadOutput):
    """A callable that was not called, or gave nothing that could be a result: no fault of a kernel can be seen in it."""


# what Triton says where no driver of a GPU is loaded
_TRITON_ALONE = "0 active drivers"

Item = TypeVar("Item", Implementation, Control)


def registered(kernel: Kernel, name: str, items: Iterable[Item]) -> Item:
    """The implementation of that name, or the control `COLOUR.NAME`, for this kernel."""
    for item in items:
        own = item.label if isinstance(item, Implementation) else f"{item.colour}.{item.name}"
        if (own, item.profile) == (name, kernel.profile.name) and served(
            item.parameters, kernel.parameters
        ):
            return item
    raise ContractError(
        f"{kernel.id}/{name} is not registered in the process that judges it: let [tool.contract] suites, or a FILE"
        " argument, name the module that registers it"
    )


def target_of(payload: Mapping[str, Any]) -> Implementation | Control:
    """The implementation or planted control that a payload is about."""
    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    name, target = kernel.contract.name, payload["target"]
    if target["kind"] == "implementation":
        return registered(kernel, target["name"], registry.implementations(name))
    return registered(kernel, target["name"], registry.controls(name))


def resolve(payload: Mapping[str, Any]) -> tuple[Callable[..., Any], bool]:
    """The callable of a payload's target, and whether it may write in place."""
    item = target_of(payload)
    return item.call, isinstance(item, Implementation) and item.in_place


#: Where an operand that was placed on the host is put before the call, by its format.
Put = Callable[[Placed, formats.Format], Placed]
#: What is called in place of a callable.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def run(
    payload: dict[str, Any],
    arrays: dict[str, Array],
    *,
    put: Put | None = None,
    wrap: Wrap | None = None,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run one launch of one target on one case.

    Args:
        payload, arrays: the call that a worker was given.
        put: moves every operand to where the callable wants it; they stay on the host where None.
        wrap: what an engine puts around the callable.

    Returns:
        {"bad": reason or ""; "unfit": whether it is no kernel at all; "changed": inputs written; "around": buffers written
        around; "touched": whether the process is not as it was} and the output bits.
    """
    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    launch = Launch(**payload["launch"])
    case = Case(payload["shape"], arrays, payload["scalars"])
    call, in_place = resolve(payload)
    runner = _torch_runner(
        kernel,
        call,
        in_place,
        launch,
        payload.get("poison", "finite"),
        put,
        wrap,
        twice=bool(payload.get("twice")),
    )
    torch.set_num_threads(launch.threads)
    report: dict[str, Any] = {"bad": "", "changed": [], "around": []}
    before = state.baseline()
    try:
        outputs = _in_batches(kernel, case, launch.batch, runner, report)
    except BadOutput as error:
        report["bad"], report["unfit"] = str(error), isinstance(error, Unfit)
        outputs = {}
    report["touched"] = state.differs(before)
    return report, outputs


Runner = Callable[[Case, dict[str, Any]], dict[str, Array]]


def _in_batches(
    kernel: Kernel, case: Case, batch: int, runner: Runner, report: dict[str, Any]
) -> dict[str, Array]:
    rows = case.rows(kernel)
    if not batch or batch >= rows or kernel.shares:
        return runner(case, report)
    parts = [
        runner(cases.take_rows(kernel, case, slice(a, a + batch)), report)
        for a in range(0, rows, batch)
    ]
    return {
        o.name: np.concatenate([p[o.name] for p in parts], kernel.row_axis(o) or 0)
        for o in kernel.outputs()
        if all(o.name in p for p in parts)
    }


def _torch_runner(
    kernel: Kernel,
    call: Callable[..., Any],
    in_place: bool,
    launch: Launch,
    poison: str,
    put: Put | None,
    wrap: Wrap | None,
    *,
    twice: bool = False,
) -> Runner:
    fits = _Fits(call)
    called = call if wrap is None else wrap(call)

    def run_one(case: Case, report: dict[str, Any]) -> dict[str, Array]:
        placed = placed_operands(kernel, case.operands, launch.layout, poison, put)
        arguments = keywords_of(call, kernel, placed, case.scalars, launch)
        fits.check(arguments)
        try:
            result = called(**arguments)
        except RuntimeError as error:
            if _TRITON_ALONE in str(error):
                raise Unfit(
                    "it launches a Triton kernel, and nothing here runs one: register it with engine='ptx'"
                ) from error
            raise
        outputs = _collect(kernel, case, result, placed, in_place)
        if twice and not in_place:
            others = {n: torch.zeros_like(p.tensor) for n, p in placed.items()}
            called(**{**arguments, **others})
            again = _collect(kernel, case, result, placed, in_place)
            if any(not np.array_equal(bits, again[name]) for name, bits in outputs.items()):
                raise BadOutput("a second call writes over the result of the first")
        writable = {o.in_place_of for o in kernel.outputs() if in_place} | {
            o.name for o in kernel.inputs() if o.role == "inout"
        }
        for name, p in placed.items():
            inside, around = p.touched()
            if inside and name not in writable and name not in report["changed"]:
                report["changed"].append(name)
            if around and name not in report["around"]:
                report["around"].append(name)
        return outputs

    return run_one


def placed_operands(
    kernel: Kernel,
    operands: Mapping[str, Array],
    layout: str,
    poison: str,
    put: Put | None = None,
) -> dict[str, Placed]:
    """Every input in a buffer of its own, where the call wants it."""
    placed = {}
    for operand in kernel.inputs():
        name, fmt = operand.name, kernel.format(operand)
        here = place(name, operands[name], fmt, layout, poison)
        placed[name] = here if put is None else put(here, fmt)
    return placed


def keywords_of(
    call: Callable[..., Any],
    kernel: Kernel,
    placed: Mapping[str, Placed],
    scalars: Mapping[str, Any],
    launch: Launch,
) -> dict[str, Any]:
    """What the callable is given: tensors, scalars, the parameters that it names, the launch's own arguments."""
    tensors = {name: p.tensor for name, p in placed.items()}
    return {**tensors, **scalars, **arguments_of(call, kernel), **launch.arguments}


def body_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """What names the arguments: of a torch module, whose __call__ takes anything, its forward."""
    forward = getattr(call, "forward", None)
    return forward if callable(forward) and not inspect.isfunction(call) else call


def signature_of(call: Callable[..., Any]) -> inspect.Signature | None:
    """What the callable takes; None where it does not say. It is asked at every call, and read once."""
    try:
        return _signature(call)
    except TypeError:
        # one that cannot be hashed
        return _signature.__wrapped__(call)


@functools.lru_cache(256)
def _signature(call: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(body_of(call))
    except (TypeError, ValueError):
        return None


class _Fits:
    """Refuses a callable that does not take what the contract passes, before it is called."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.checked = call, False

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise BadOutput where the arguments do not fit; their names are the same for every batch."""
        if self.checked:
            return
        self.checked = True
        if said := _misfit(self.call, arguments):
            raise Unfit(said)


def misfit(call: Callable[..., Any], kernel: Kernel) -> str:
    """Why the callable does not take what the contract passes at a plain launch; '' where it does, or does not say."""
    scalars = (scalar.name for scalar in kernel.contract.scalars)
    return _misfit(
        call, [*(o.name for o in kernel.inputs()), *scalars, *arguments_of(call, kernel)]
    )


def _misfit(call: Callable[..., Any], names: Collection[str]) -> str:
    signature = signature_of(call)
    return "" if signature is None else _misfits(signature, tuple(names))


@functools.lru_cache(256)
def _misfits(signature: inspect.Signature, names: tuple[str, ...]) -> str:
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        return (
            f"does not take the contract's arguments ({error}): it is {signature}, the contract passes"
            f" {', '.join(names)} by name"
        )
    return ""


def arguments_of(call: Callable[..., Any], kernel: Kernel) -> dict[str, str]:
    """The enumerated parameters that the callable's signature names (all of them where it takes **kwargs)."""
    found = signature_of(call)
    if found is None:
        return {}
    named = found.parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in named.values())
    given = {key: value for key, value in kernel.parameters.items() if takes_all or key in named}
    if "profile" in named:
        # one function that serves several profiles is told which
        given["profile"] = kernel.profile.name
    return given


def _collect(
    kernel: Kernel, case: Case, result: Any, placed: Mapping[str, Placed], in_place: bool
) -> dict[str, Array]:
    wanted = [o for o in kernel.outputs() if o.role == "out"]
    if isinstance(result, Mapping):
        found = dict(result)
    elif isinstance(result, (tuple, list)):
        found = dict(zip([o.name for o in wanted], result, strict=False))
        if not len([o for o in wanted if not o.stage]) <= len(result) <= len(wanted):
            raise Unfit(
                f"returned {len(result)} outputs, the contract has {len(wanted)}: {[o.name for o in wanted]}"
            )
    else:
        # one tensor is the output proper; stages beside it are kept to itself
        proper = [o for o in wanted if not o.stage] or wanted
        found = {proper[0].name: result} if proper else {}
        if len([o for o in wanted if not o.stage]) > 1:
            raise BadOutput(
                f"returned one {type(result).__name__}, the contract has outputs {[o.name for o in wanted]}"
            )
    for p in placed.values():
        p.fetch()
    bits: dict[str, Array] = {}
    for operand in wanted:
        value = found.get(operand.name)
        if value is None and operand.stage:
            continue
        fmt = kernel.format(operand)
        shape = tuple(case.shape[dim] for dim in operand.dims)
        if not isinstance(value, torch.Tensor):
            raise Unfit(f"output {operand.name} is {type(value).__name__}, not a tensor")
        if value.dtype != torch_type(fmt):
            raise BadOutput(
                f"output {operand.name} has dtype {value.dtype}, the contract needs {torch_type(fmt)}"
            )
        if tuple(value.shape) != shape:
            raise BadOutput(
                f"output {operand.name} has shape {tuple(value.shape)}, the contract needs {shape}"
            )
        first, last = _memory(value)
        for name, p in placed.items():
            start = p.address
            if (
                first < start + p.buffer.nbytes
                and start < last
                and not (in_place and operand.in_place_of == name)
            ):
                raise BadOutput(f"output {operand.name} shares memory with input {name}")
        bits[operand.name] = to_bits(value, fmt).copy()
    for operand in kernel.outputs():
        if operand.role == "inout":
            bits[operand.name] = placed[operand.name].body.copy()
    return bits


def _memory(value: Any) -> tuple[int, int]:
    """The first and the last address of a tensor's storage; none where it is empty, or has no memory.

    A host and its devices share one space of addresses (CUDA C++ Programming Guide, unified virtual address space).
    """
    if value.device.type == "meta" or not value.numel():
        return 0, 0
    storage = value.untyped_storage()
    low = storage.data_ptr()
    return low, low + storage.nbytes()


def measure(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Count the resources of one launch: see contract.resources."""
    from contract.resources import count

    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    call, _ = resolve(payload)
    launch = Launch(**payload["launch"])
    placed = placed_operands(kernel, arrays, launch.layout, "finite")
    keywords = keywords_of(call, kernel, placed, payload["scalars"], launch)
    torch.set_num_threads(launch.threads)
    return {"resources": count(call, keywords)}, {}


__all__ = ["BadOutput", "arguments_of", "formats", "measure", "resolve", "run"]
