"""A verified kernel as its callers see it: arguments that its contract does not allow are refused before it runs.

Sizes, dtypes and the contract's rules are looked at on every call, values only where a wrong one would be read as a place
(`below`) or spoil a row in silence (`finite`, for operands that rows share, such as scales): those once for each tensor
and each time it was written to.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract.case import Kernel, check_finite, check_values, shape_from
from contract.declare import Implementation, Operand
from contract.engines.host import arguments_of, signature_of
from contract.engines.placement import TORCH_TYPES, to_bits
from contract.errors import CaseError
from contract.held import TwoStep

# Shapes and dtypes that were checked: a decoder has a few, a program that makes new ones for ever shall not fill memory.
_MOST_FORMS = 256
#: Where all evidence is from.
DEVICE = "cpu"


class _Depth(threading.local):
    """How many calls are under way in this thread; another thread's kernel excuses nothing here."""

    calls = 0


_depth = _Depth()
#: Called with the kernel, operands and scalars by name before every call; what it returns, once the call has ended well.
Watcher = Callable[[Kernel, Mapping[str, Any]], Callable[[], None] | None]
_watchers: list[Watcher] = []


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let the watcher look on at every call of a verified kernel, of any thread; it must not write to what it sees.

    A kernel that holds operands shows them only where it took them in while somebody looked on.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def running() -> bool:
    """Whether a verified kernel is running in this thread, the look at its arguments included."""
    return _depth.calls > 0


class Call:
    """One implementation of a kernel, its profile and enumerated parameters bound.

    Called as the implementation is, with operands and scalars by name or in its own order; returns what it returns.

    Raises:
        CaseError: an operand that is missing, that the contract has under other parameters only, or that has a device, a
            dtype, a number of dims, a size or values that the contract does not allow; the message names the operand, the
            value and what is needed.
    """

    def __init__(self, kernel: Kernel, item: Implementation) -> None:
        self.kernel, self.item = kernel, item
        self.extra = arguments_of(item.call, kernel)
        self.inputs = {o.name: o for o in kernel.inputs()}
        self.types = {o.name: TORCH_TYPES[kernel.format(o).name] for o in kernel.inputs()}
        self.signature = signature_of(item.call)
        self.takes = _names(self.signature)
        # what one function that serves several parameters would take, and compute something else
        self.absent = {o.name for o in kernel.contract.inputs()} - set(self.inputs)
        # id of a tensor whose values were looked at -> (the tensor, its version, one past its largest value)
        self._seen: dict[int, tuple[weakref.ref[Any], int, int | None]] = {}
        # forms of all operands that were checked -> whose values are to be looked at, with their sizes
        self._fitting: dict[Any, tuple[tuple[Operand, ...], Mapping[str, int]]] = {}

    def __repr__(self) -> str:
        return f"<verified {self.kernel.id}/{self.item.name}>"

    def __call__(self, *operands: Any, **named: Any) -> Any:
        _depth.calls += 1
        try:
            return self._checked(operands, named)
        finally:
            _depth.calls -= 1

    def hold(self, **named: Any) -> HeldCall:
        """The kernel with the operands that stay taken in, once: (x, weight) becomes a call of x.

        Only of an implementation that is a class, which was judged in the same two steps (`contract.held`).

        Args:
            **named: every operand (and scalar) that its constructor takes.

        Raises:
            CaseError: an implementation that has no two steps, an operand that is missing or one that its call takes, or
                what a call would refuse.
        """
        return HeldCall(self, named)

    def _checked(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        self._refuse_unknown(named)
        given = self._named(operands, named)
        self._refuse_absent(given)
        self.check({name: given.get(name) for name in self.inputs})
        seen = [watcher(self.kernel, given) for watcher in _watchers]
        result = self.item.call(*operands, **named, **self.extra)
        _tell(seen)
        return result

    def _refuse_unknown(self, named: Mapping[str, Any]) -> None:
        if self.takes is not None and (strange := named.keys() - self.takes.keys() - self.absent):
            raise CaseError(
                f"{self.kernel.id}/{self.item.name}: it takes no {min(strange)}=; it takes {', '.join(self.takes)}"
            )

    def _refuse_absent(self, given: Mapping[str, Any]) -> None:
        for name in self.absent:
            if given.get(name) is not None:
                raise CaseError(
                    f"{self.kernel.id}: it has no operand {name}= under these parameters; it takes"
                    f" {', '.join(self.inputs)}"
                )

    def _named(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in named:
            if name in self.extra:
                raise CaseError(
                    f"{self.kernel.id}: {name}={named[name]!r} is bound already; ask verified() for another"
                )
        if not operands or self.signature is None:
            return named
        try:
            return self.signature.bind_partial(*operands, **named).arguments
        except TypeError as error:
            raise CaseError(f"{self.kernel.id}: {error}; it takes {self.signature}") from None

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse operands that the contract does not allow; `Form`s stand for those whose values were looked at."""
        key: tuple[Any, ...] | None = None
        # what is no tensor, the long way says
        with contextlib.suppress(AttributeError):
            key = (*given, *[(x.dtype, x.shape, x.device) for x in given.values()])
        known = None if key is None else self._fitting.get(key)
        if known is None:
            looked = self._fit(given)
            shapes = {name: tuple(x.shape) for name, x in given.items()}
            known = looked, shape_from(self.kernel, shapes)
            if len(self._fitting) >= _MOST_FORMS:
                self._fitting.clear()
            if key is not None:
                self._fitting[key] = known
        looked, shape = known
        for operand in looked:
            value = given[operand.name]
            if not isinstance(value, Form):
                self._look(operand, value, operand.limit(shape), shape)

    def _fit(self, given: Mapping[str, Any]) -> tuple[Operand, ...]:
        """The operands whose values are to be looked at; refuses what is missing or has another dtype or device."""
        for name, value in given.items():
            if value is None:
                raise CaseError(
                    f"{self.kernel.id}: operand {name}= is not given; it takes {', '.join(self.inputs)}"
                )
            if not hasattr(value, "dtype"):
                raise CaseError(
                    f"{self.kernel.id}: {name} is {type(value).__name__}, not a tensor; profile"
                    f" {self.kernel.profile.name} needs {self.types[name]}"
                )
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype != self.types[name]:
                raise CaseError(
                    f"{self.kernel.id}: {name} has dtype {dtype}, profile {self.kernel.profile.name} needs"
                    f" {self.types[name]}; convert it, or ask verified() for another profile"
                )
            device = getattr(getattr(value, "device", None), "type", DEVICE)
            if device != DEVICE:
                raise CaseError(
                    f"{self.kernel.id}: {name} is on {device}; the implementation is verified on the {DEVICE} alone"
                )
        return tuple(
            operand
            for name, operand in self.inputs.items()
            if name in given
            and (
                operand.below is not None
                or operand.positive
                or (operand.finite and self.kernel.row_axis(operand) is None)
            )
        )

    def _look(
        self, operand: Operand, value: Any, limit: int | None, shape: Mapping[str, int]
    ) -> None:
        """Refuse a value of this tensor, unless it was looked at already and not written to since."""
        version = int(getattr(value, "_version", 0))
        known = self._seen.get(id(value))
        if known is not None and known[0]() is value and known[1:] == (version, limit):
            return
        bits = to_bits(value, self.kernel.format(operand))
        check_values(self.kernel, operand, shape, bits)
        if operand.finite:
            check_finite(self.kernel, operand, bits)
        key = id(value)
        self._seen[key] = (weakref.ref(value, lambda _: self._seen.pop(key, None)), version, limit)


def _tell(seen: list[Callable[[], None] | None]) -> None:
    for ended in seen:
        if ended is not None:
            ended()


def _names(signature: inspect.Signature | None) -> Mapping[str, inspect.Parameter] | None:
    """The arguments that a callable takes by name; None where it does not say, or takes any."""
    if signature is None:
        return None
    kinds = [p.kind for p in signature.parameters.values()]
    return None if inspect.Parameter.VAR_KEYWORD in kinds else signature.parameters


@dataclass(frozen=True)
class Form:
    """What is left of an operand that was taken in: enough to check the others against."""

    dtype: Any
    shape: Any
    device: Any


class HeldCall:
    """A verified kernel that has taken in the operands that stay; called with the others by name."""

    def __init__(self, call: Call, named: Mapping[str, Any]) -> None:
        step = call.item.call
        if not isinstance(step, TwoStep):
            raise CaseError(
                f"{call.kernel.id}/{call.item.name}: it takes all operands in one call; there is nothing to hold"
            )
        for name in named:
            if name not in step.made or name in call.extra:
                raise CaseError(
                    f"{call.kernel.id}/{call.item.name}: {name}= is not held; it holds"
                    f" {', '.join(sorted(step.made - set(call.extra)))}"
                )
        call._refuse_absent(named)
        held = {name: named.get(name) for name in call.inputs if name in step.made}
        _depth.calls += 1
        try:
            call.check(held)
            self._run = step.make({**named, **call.extra})
        finally:
            _depth.calls -= 1
        self.call = call
        self._held = {n: Form(x.dtype, x.shape, x.device) for n, x in held.items() if x is not None}
        self._extra = {n: v for n, v in call.extra.items() if n not in step.made}
        self._scalars = frozenset(named) - set(held)
        # copies: what was taken in does not follow its tensor either
        self._shown = (
            {n: x.clone() if n in held else x for n, x in named.items()} if _watchers else None
        )

    def __repr__(self) -> str:
        return f"<{self.call!r} that holds {', '.join(self._held)}>"

    def __call__(self, **named: Any) -> Any:
        call = self.call
        _depth.calls += 1
        try:
            for name in named:
                if name in self._held or name in self._scalars or name in call.extra:
                    raise CaseError(
                        f"{call.kernel.id}: {name}= is held already; hold() another for another"
                    )
            call._refuse_unknown(named)
            call._refuse_absent(named)
            call.check({n: self._held[n] if n in self._held else named.get(n) for n in call.inputs})
            seen = []
            for watcher in _watchers:
                if self._shown is None:
                    raise CaseError(
                        f"{call.kernel.id}: it took in {', '.join(self._held)} before anybody looked on; hold() it again"
                    )
                seen.append(watcher(call.kernel, {**self._shown, **named}))
            result = self._run(**named, **self._extra)
            _tell(seen)
            return result
        finally:
            _depth.calls -= 1
