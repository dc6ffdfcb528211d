"""What torch allocates without values, and what it writes, seen while a launcher runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from contract.lazy import lazy

torch = lazy("torch")

#: Operators of torch that give memory without values.
_ALLOCATES = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
#: Those that write every element of their first argument and read none; what is given as `out` is only written, too.
_FILLS = frozenset(
    {
        "_foreach_copy_",
        "_foreach_zero_",
        "bernoulli_",
        "cauchy_",
        "copy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
    }
)
#: Those that change how a tensor lies in its storage; torch calls that a write.
_MOVES = frozenset(
    {
        "as_strided_",
        "detach_",
        "resize_",
        "resize_as_",
        "set_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)


def watching(
    allocated: Callable[[Any], None],
    written: Callable[[Any, bool], None] | None = None,
    read: Callable[[Any], None] | None = None,
) -> AbstractContextManager[Any]:
    """A torch mode in which `allocated` gets every tensor that has no values yet, `written` every one that torch writes,
    with whether that is all that becomes of it: each element written and none read; `read` every one whose elements an
    operator reads, which one that makes a view does not."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # the compiler is not in use here, and loading it to be skipped costs seconds
            return False

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            keywords = kwargs or {}
            name = func._overloadpacket.__name__
            if read is not None:
                for tensor in _read(name, func._schema, args, keywords):
                    read(tensor)
            result = func(*args, **keywords)
            if name in _ALLOCATES:
                allocated(result)
            elif written is not None and func._schema.is_mutable and name not in _MOVES:
                for tensor, alone in _mutated(name, func._schema, args, keywords):
                    written(tensor, alone)
            return result

    return Watch()


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors among arguments, those in lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def _arguments(schema: Any, args: Any, keywords: Any) -> Iterator[tuple[Any, Any]]:
    """What an operator declares of each argument, and what it is given."""
    for place, argument in enumerate(schema.arguments):
        yield argument, args[place] if place < len(args) else keywords.get(argument.name)


def _only_written(name: str, argument: Any) -> bool:
    """Whether an operator writes every element of this argument and reads none."""
    aliased = argument.alias_info is not None and argument.alias_info.is_write
    return aliased and (argument.is_out or name in _FILLS)


def _read(name: str, schema: Any, args: Any, keywords: Any) -> Iterator[Any]:
    """The tensors among the arguments whose elements an operator reads."""
    for argument, value in _arguments(schema, args, keywords):
        shared = argument.alias_info is not None
        # a view of it is made, which is read when it is used
        views = shared and not argument.alias_info.is_write
        if not (views or (shared and name in _MOVES) or _only_written(name, argument)):
            yield from tensors_in((value,))


def _mutated(name: str, schema: Any, args: Any, keywords: Any) -> Iterator[tuple[Any, bool]]:
    """The tensors among the arguments that an operator writes, and whether it only writes them."""
    for argument, value in _arguments(schema, args, keywords):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tensors_in((value,)):
                yield tensor, _only_written(name, argument)
