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


def watching(
    allocated: Callable[[Any], None],
    written: Callable[[Any], None] | None = None,
    given: Callable[[Any], None] | None = None,
) -> AbstractContextManager[Any]:
    """A torch mode in which `allocated` gets every tensor that has no values yet, `written` every one that torch writes,
    `given` every one that an operator is given."""
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
            if given is not None:
                for tensor in _tensors((*args, *keywords.values())):
                    given(tensor)
            result = func(*args, **keywords)
            if func._overloadpacket.__name__ in _ALLOCATES:
                allocated(result)
            elif written is not None and func._schema.is_mutable:
                for tensor in _mutated(func._schema, args, keywords):
                    written(tensor)
            return result

    return Watch()


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors among arguments, those in lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mutated(schema: Any, args: Any, keywords: Any) -> list[Any]:
    """The tensors among the arguments that an operator writes."""
    found: list[Any] = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[place] if place < len(args) else keywords.get(argument.name))
    return list(_tensors(found))
