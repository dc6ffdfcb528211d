"""Implementations in two steps: made with what stays, called with what changes.

    @contract.implementation("w4_gemv", profile="kept")
    class Product:
        def __init__(self, words, scales): ...      # packs the weight, once
        def __call__(self, x): ...                  # runs for every vector

A class so decorated is judged as the function product(x, words, scales) = Product(words, scales)(x), in one step; a
verified one may be `hold`ed: its constructor runs once, on the code path that was judged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from contract.errors import DeclarationError


class TwoStep:
    """A class as the function of all operands that its constructor and its call take.

    Attributes:
        made: names that the constructor takes.

    Raises:
        DeclarationError: no `__call__`, a name that both steps take, or arguments without names.
    """

    def __init__(self, cls: type[Any]) -> None:
        self.cls, self.__name__, self.__doc__ = cls, cls.__name__, cls.__doc__
        call = _call_of(cls)
        if call is None:
            raise DeclarationError(
                f"implementation {cls.__name__} is a class without __call__; let its constructor take the operands that"
                " stay, and its __call__ the others"
            )
        # a torch module without a constructor of its own holds nothing
        made = cls.__init__
        own = inspect.isfunction(made) and made.__module__ != "torch.nn.modules.module"
        first = _parameters(cls, made) if own else {}
        second = _parameters(cls, call)
        if both := sorted(first.keys() & second.keys()):
            raise DeclarationError(
                f"implementation {cls.__name__}: its constructor and its __call__ both take {both[0]}; let one of them"
            )
        self.made = frozenset(first)
        self.__signature__ = inspect.Signature([*first.values(), *second.values()])

    def __repr__(self) -> str:
        return f"<{self.cls.__module__}.{self.cls.__qualname__} in two steps>"

    def __call__(self, **arguments: Any) -> Any:
        return self.make(arguments)(**{n: v for n, v in arguments.items() if n not in self.made})

    def make(self, arguments: Mapping[str, Any]) -> Callable[..., Any]:
        """The first step, with those of the arguments that it takes."""
        made: Callable[..., Any] = self.cls(
            **{n: v for n, v in arguments.items() if n in self.made}
        )
        return made


def _call_of(cls: type[Any]) -> Any:
    """The function that names the arguments of its calls: of a torch module, whose __call__ takes anything, `forward`."""
    # a class is itself called by its type's
    found = [
        f for name in ("__call__", "forward") if inspect.isfunction(f := getattr(cls, name, None))
    ]
    return next((f for f in found if not _takes_anything(f)), found[0] if found else None)


def _takes_anything(function: Any) -> bool:
    _, *found = inspect.signature(function).parameters.values()
    return bool(found) and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found)


def _parameters(cls: type[Any], function: Any) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    _, *found = inspect.signature(function).parameters.values()
    for parameter in found:
        if parameter.kind not in named:
            raise DeclarationError(
                f"implementation {cls.__name__}: {parameter} has no name of its own; name every operand"
            )
    return {p.name: p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in found}
