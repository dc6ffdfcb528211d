"""In the worker: a black box, loaded from what the command line names, and called with the operands of a contract.

It is registered there as an implementation of the contract, under every profile, so that any engine runs it by the path
that implementations take: in guarded buffers, in a process that can be killed. How its arguments are bound comes with
each call (contract.identify.binding).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contract import registry, suites
from contract.errors import ContractError, UsageError
from contract.identify.expressions import evaluate
from contract.interval import Array
from contract.lazy import lazy

torch = lazy("torch")

#: The name under which the black box is registered, and the launch argument that its binding comes in.
NAME, BINDING = "identified", "binding"
#: Guesses of a constructor's required arguments that are tried.
GUESSES = 64


def worker_setup(payload: dict[str, Any]) -> None:
    """Load the suites of the parent and register the black box."""
    suites.reload(payload["suites"])
    contract = registry.get(payload["kernel"])
    profiles = tuple(profile.name for profile in contract.profiles)
    add = registry.implementation(
        contract.name, profile=profiles, name=NAME, engine=payload["engine"], fusion=None
    )
    add(Box(payload["target"], contract.name))


def describe(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the black box takes, as JSON.

    Args:
        payload: {"target", "arguments": name -> expression, "scalars": names, "sizes": dim -> size, "shapes": operand ->
            shape, "absent": operands of the contract that are none here}.

    Returns:
        "refused": why it is no target, or ""; "parameters": its arguments, None where it does not say; "state":
        operand -> parameter of the module; "unbound": parameters of the module that are no operands; "constructor":
        argument -> expression; "numbers": numbers that it has for arguments nobody gives, by name; "unknown":
        arguments of the command line that it does not have.
    """
    try:
        found = load(payload["target"])
        return _facts(found, payload), {}
    except ContractError as error:
        return {"refused": str(error)}, {}


def load(target: str) -> Any:
    """What `package.module:name`, `file.py:name` or `model.onnx` names.

    Raises:
        UsageError: nothing of that name.
    """
    if target.endswith(".onnx"):
        from contract.identify.onnx_model import OnnxModel

        return OnnxModel(target)
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(f"target {target!r}: give package.module:name, file.py:name or model.onnx")
    found = _file(Path(place)) if place.endswith(".py") else _module(place)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"target {target!r}: {place} has no {part!r}") from None
    if not callable(found):
        raise UsageError(
            f"target {target!r} is a {type(found).__name__}, which cannot be called; give the function that launches it"
        )
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"target: no module {error.name!r}; is it installed, or on PYTHONPATH?"
        ) from error


def _file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"target: no file {path} (from {Path.cwd()})")
    name = f"contract_target_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _facts(found: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "refused": "", "parameters": None, "state": {}, "unbound": [], "constructor": {},
        "numbers": {}, "unknown": [], "kind": "function",
    }  # fmt: skip
    given = dict(payload["arguments"])
    if inspect.isclass(found):
        taken = _signature(found)
        named = set() if taken is None else set(taken.parameters)
        constructor, instance = _constructed(found, taken, payload)
        facts["constructor"], facts["kind"] = constructor, "class"
        given = {name: text for name, text in given.items() if name not in named}
        facts["numbers"] |= _numbers(taken, {*constructor})
        found = instance
    if hasattr(found, "named_parameters"):
        facts["kind"] = "module" if facts["kind"] == "class" else "instance"
        own = [name for name, _ in found.named_parameters()]
        buffers = [name for name, _ in found.named_buffers()]
        operands = payload["shapes"]
        facts["state"] = {name: name for name in (*own, *buffers) if name in operands}
        facts["unbound"] = [name for name in own if name not in operands]
    call = getattr(found, "forward", None) if hasattr(found, "named_parameters") else found
    signature = getattr(found, "parameters_of_inputs", None)
    if signature is not None:
        facts["parameters"] = signature()
    elif (said := _signature(call)) is not None:
        facts["parameters"] = [_parameter(p) for p in said.parameters.values()]
        facts["numbers"] |= _numbers(said, set())
    if facts["parameters"] is not None:
        names = {p["name"] for p in facts["parameters"]}
        opened = any(p["kind"] == "VAR_KEYWORD" for p in facts["parameters"])
        facts["unknown"] = [] if opened else [name for name in given if name not in names]
    return facts


def _signature(call: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        return None


def _parameter(p: inspect.Parameter) -> dict[str, Any]:
    required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    return {"name": p.name, "kind": p.kind.name, "required": required}


def _numbers(signature: inspect.Signature | None, given: set[str]) -> dict[str, float]:
    """Defaults that are numbers, of arguments that are not given."""
    if signature is None:
        return {}
    return {
        p.name: float(p.default)
        for p in signature.parameters.values()
        if isinstance(p.default, (int, float))
        and not isinstance(p.default, bool)
        and p.name not in given
    }


def guesses(sizes: Mapping[str, int], hidden: set[str]) -> Iterator[str]:
    """What a required argument that nobody gave may mean: a size, or a shape of one dim."""
    for dim in sizes:
        if dim not in hidden:
            yield from (dim, f"({dim},)", f"[{dim}]")


def _constructed(
    cls: Any, signature: inspect.Signature | None, payload: Mapping[str, Any]
) -> tuple[dict[str, str], Any]:
    """Expressions of the constructor's arguments, and an instance.

    Raises:
        UsageError: no guess of what is not given makes an instance that holds the operands.
    """
    if signature is None:
        return {}, cls()
    names, given = signature.parameters, payload["arguments"]
    fixed = {name: given[name] for name in names if name in given}
    fixed |= {name: name for name in payload["scalars"] if name in names and name not in given}
    missing = [
        p.name
        for p in names.values()
        if p.default is p.empty
        and p.name not in fixed
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if others := [name for name in missing if name in payload["absent"]]:
        raise UsageError(f"its `{others[0]}` is no operand here")
    values = {**payload["sizes"], **payload["scalars"]}
    tried = list(guesses(payload["sizes"], set(payload["shapes"])))
    choices = itertools.islice(itertools.product(tried, repeat=len(missing)), GUESSES)
    said, second = "", None
    for choice in choices:
        constructor = fixed | dict(zip(missing, choice, strict=True))
        try:
            made = cls(**{name: evaluate(text, values) for name, text in constructor.items()})
        except Exception as error:  # noqa: BLE001 - whatever a constructor says to a guess
            said = f"{type(error).__name__}: {error}"
            continue
        fits = _holds(made, payload["shapes"])
        if fits or not missing:
            return constructor, made
        if fits is None and second is None:
            second = constructor, made
    if second is not None:
        return second
    raise UsageError(
        f"{cls.__name__} cannot be built with {', '.join(missing) or 'its defaults'} from the operands' sizes"
        f"{' (' + said + ')' if said else ''}; give --arg NAME=VALUE"
    )


def _holds(made: Any, shapes: Mapping[str, Any]) -> bool | None:
    """Whether its parameters have the shapes of the operands of their names; None where it has none of those names."""
    if not hasattr(made, "named_parameters"):
        return None
    state = {n: list(t.shape) for n, t in (*made.named_parameters(), *made.named_buffers())}
    common = [name for name in state if name in shapes]
    return all(state[name] == list(shapes[name]) for name in common) if common else None


class Box:
    """The black box as an implementation: f(binding=..., operands, scalars, parameters by name) -> its result."""

    def __init__(self, target: str, kernel: str) -> None:
        self.target, self.kernel = target, kernel
        self.found: Any = None
        self.made: dict[str, Any] = {}

    def __call__(self, **given: Any) -> Any:
        binding = given.pop(BINDING)
        if self.found is None:
            self.found = load(self.target)
        names = self._names(given)
        call = self._callable(binding, names)
        positional = [evaluate(text, names) for text in binding["positional"]]
        keywords = {name: evaluate(text, names) for name, text in binding["keywords"].items()}
        with torch.no_grad():
            return call(*positional, **keywords)

    def _names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Dims, operands, scalars and enumerated parameters of a call; an operand hides a dim of its name."""
        contract = registry.get(self.kernel)
        dims = {
            dim: size
            for operand in contract.inputs(given)
            if operand.name in given
            for dim, size in zip(operand.dims, given[operand.name].shape, strict=True)
        }
        return {**dims, **given}

    def _callable(self, binding: Mapping[str, Any], names: Mapping[str, Any]) -> Callable[..., Any]:
        if not inspect.isclass(self.found):
            return self._ready(self.found, binding, names)
        arguments = {name: evaluate(text, names) for name, text in binding["constructor"].items()}
        key = repr(arguments)
        if key not in self.made:
            self.made[key] = self.found(**arguments)
        return self._ready(self.made[key], binding, names)

    def _ready(
        self, made: Any, binding: Mapping[str, Any], names: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """The module with operands in the place of its parameters and buffers."""
        for name, operand in binding["state"].items():
            path, _, leaf = name.rpartition(".")
            owner = made.get_submodule(path)
            if leaf in owner._buffers:
                owner._buffers[leaf] = names[operand]
            else:
                setattr(owner, leaf, torch.nn.Parameter(names[operand], requires_grad=False))
        ready: Callable[..., Any] = made.eval() if hasattr(made, "named_parameters") else made
        return ready
