"""A pipeline computes in verified kernels alone: outside of them torch may only place and move values.

    with KernelsOnly():
        logits = model.step(ids, position)

What may stand between two kernels, by operator of aten:

    views          view, transpose, select, slice, expand, ... and the other name of the same bits, view(dtype); of which
                   halves may be taken: the upper ones of fp32 are bf16, cut off
    indexing       index, index_select, gather, take, embedding, and writing by index without accumulation
    copies         clone, contiguous, cat, stack, repeat, copy_, all tensors of one dtype
    allocation     empty, zeros, ones, full, arange of integers, fill_, a tensor of Python's numbers
    reading        int(ids[0]), of integers alone: a float that Python holds can be computed with out of sight

Everything else is refused, also what is harmless but not listed. An operator that is made up of others (linear, to,
reshape) is judged by those. Inside `contract.calls.Call` everything is allowed; so is, inside `measuring()`, what looks at
values and gives none back to the model.

Not seen: arithmetic of Python's own numbers; memory that is read or written by other means than torch's tensors (dlpack
capsules, pickles and pointers among them); other threads and processes; code that switches torch's modes off.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from contract import calls
from contract.errors import ContractError


class OutsideKernel(ContractError):
    """An operator that computes, outside every verified kernel; the message names it, its operands and the line."""


VIEWS = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "detach_", "diagonal",
    "expand", "lift_fresh", "narrow", "permute", "resolve_conj", "resolve_neg", "select", "slice",
    "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze",
    "view",
})  # fmt: skip
#: Their values have one dtype by torch's own rules; the other operands are places.
INDEXING = frozenset({
    "embedding", "gather", "index", "index_put", "index_put_", "index_select", "take",
})  # fmt: skip
COPIES = frozenset({
    "_to_copy", "cat", "clone", "copy_", "fill_", "flip", "repeat", "roll", "select_scatter",
    "slice_scatter", "stack",
})  # fmt: skip
ALLOCATION = frozenset({
    "empty", "empty_like", "empty_strided", "full", "full_like", "new_empty", "new_empty_strided",
    "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zero_", "zeros",
    "zeros_like",
})  # fmt: skip
#: Tensor methods that hand values to Python or NumPy and that the dispatcher does not see.
READS: dict[Any, str] = {
    torch.Tensor.numpy: "numpy()",
    torch.Tensor.tolist: "tolist()",
    torch.Tensor.__array__: "__array__()",
    torch.Tensor.__dlpack__: "__dlpack__()",
    torch.Tensor.__repr__: "__repr__()",
    torch.Tensor.__float__: "__float__()",
    torch.Tensor.__complex__: "__complex__()",
    torch.Tensor.untyped_storage: "untyped_storage()",
    torch.tensor: "torch.tensor()",
    torch.as_tensor: "torch.as_tensor()",
}
#: Tensor methods that compute with a function of Python's, which the dispatcher does not see.
APPLIES = (torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_)
_measuring: ContextVar[bool] = ContextVar("contract_pipelines_measuring", default=False)
_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def measuring() -> Iterator[None]:
    """Allow everything to code that looks at values and gives none back to the model: comparisons, records."""
    token = _measuring.set(True)
    try:
        yield
    finally:
        _measuring.reset(token)


class KernelsOnly(TorchDispatchMode):
    """Refuses what computes outside a verified kernel, in this thread.

    Raises:
        OutsideKernel: the operator, its operands and the line that called it.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self._reads: list[_Reads] = []

    def __enter__(self) -> Self:
        self._reads.append(_Reads())
        TorchFunctionMode.__enter__(self._reads[-1])
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: object) -> None:
        TorchDispatchMode.__exit__(self, *error)
        TorchFunctionMode.__exit__(self._reads.pop(), *error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if excused():
            return func(*args, **kwargs)
        why = objection(func, args, kwargs)
        if why is None:
            return func(*args, **kwargs)
        # Below inference_mode torch shows operators that are made up of others whole.
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            return self._decomposed(func, args, kwargs)
        raise _refusal(f"{func} {why}", (*args, *kwargs.values()))

    def _decomposed(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # without the look at reads, which would call the operator anew
        TorchDispatchMode.__enter__(self)
        try:
            with torch._C.DisableTorchFunction():
                return func.decompose(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)


class _Reads(TorchFunctionMode):
    """Refuses to hand floats to Python or NumPy."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if excused():
            return func(*args, **(kwargs or {}))
        if func in APPLIES:
            raise _refusal(f"Tensor.{func.__name__} computes with a function of Python's", args)
        name = READS.get(func)
        # torch.tensor() reads the tensors that a list of its holds; one that is given alone is copied, which is seen
        inside = args[0] if func in (torch.tensor, torch.as_tensor) else args[:1]
        if (
            name
            and isinstance(inside, list | tuple)
            and not all(map(_is_integer, _tensors(inside)))
        ):
            shown = name if name.startswith("torch.") else f"Tensor.{name}"
            raise _refusal(f"{shown} {READING}", args)
        return func(*args, **(kwargs or {}))


READING = "hands values that are no integers to Python, which can compute with them out of sight"


def excused() -> bool:
    """Whether everything is allowed here."""
    return calls.running() or _measuring.get()


def objection(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why an operator may not run outside a kernel; None where it may."""
    name = func._schema.name.removeprefix("aten::")
    if any(argument.is_out for argument in func._schema.arguments):
        return "writes to out="
    if name in VIEWS or name in ALLOCATION:
        return None
    if name in INDEXING:
        # index_put(self, indices, values, accumulate)
        added = name.startswith("index_put") and (kwargs.get("accumulate") or args[3:] == (True,))
        return "adds to what is there (accumulate=True)" if added else None
    if name == "fill_" and _is_integer(args[0]) and isinstance(args[1], float):
        return "rounds a number to an integer"
    if name in COPIES:
        types = {x.dtype for x in _tensors(args)} | {kwargs.get("dtype")} - {None}
        return f"changes the dtype ({_names(types)})" if len(types) > 1 else None
    if name == "arange":
        numbers = (*args, kwargs.get("dtype") or torch.int64)
        whole = all(isinstance(n, int) or n in _INTEGERS for n in numbers)
        return None if whole else "counts in numbers that are no integers"
    if name == "_local_scalar_dense":
        return None if _is_integer(args[0]) else READING
    return "is neither a view, an index, a copy of one dtype nor an allocation"


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def _is_integer(x: torch.Tensor) -> bool:
    return x.dtype in _INTEGERS


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _names(types: Any) -> str:
    return ", ".join(sorted(str(t).removeprefix("torch.") for t in types))


def _refusal(what: str, values: tuple[Any, ...]) -> OutsideKernel:
    shown = ", ".join(
        f"{_names([x.dtype])} {'x'.join(map(str, x.shape)) or 'scalar'}" for x in _tensors(values)
    )
    return OutsideKernel(
        f"{_caller()}: {what}; operands: {shown or 'none'}; outside a verified kernel only views, indexing, copies of one"
        " dtype and allocation are allowed: use a kernel that contract.verified() gives"
    )


def _caller() -> str:
    """File and line of the nearest frame that is neither torch's nor of this module."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((_TORCH, __file__)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
