"""A verified kernel as its callers see it: arguments that its contract does not allow are refused before it runs.

Sizes, dtypes and the contract's rules are looked at on every call, values only where a wrong one would be read as a place
(`below`) or spoil a row in silence (`finite`, for operands that rows share, such as scales): those once for each tensor
and each time it was written to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

from contract.case import Kernel, check_finite, check_values, shape_from
from contract.declare import Implementation, Operand
from contract.engines.host import arguments_of, signature_of
from contract.engines.placement import TORCH_TYPES, to_bits
from contract.errors import CaseError

# Values of small operands are looked at on each call: remembering them costs as much.
_SMALL = 1024
#: Where all evidence is from.
DEVICE = "cpu"


class _Depth(threading.local):
    """How many calls are under way in this thread; another thread's kernel excuses nothing here."""

    calls = 0


_depth = _Depth()


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
        # what one function that serves several parameters would take, and compute something else
        self.absent = {o.name for o in kernel.contract.inputs()} - set(self.inputs)
        # id of a tensor whose values were looked at -> (the tensor, its version, one past its largest value)
        self._seen: dict[int, tuple[weakref.ref[Any], int, int | None]] = {}

    def __repr__(self) -> str:
        return f"<verified {self.kernel.id}/{self.item.name}>"

    def __call__(self, *operands: Any, **named: Any) -> Any:
        _depth.calls += 1
        try:
            return self._checked(operands, named)
        finally:
            _depth.calls -= 1

    def _checked(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        given = self._named(operands, named)
        for name in self.absent:
            if given.get(name) is not None:
                raise CaseError(
                    f"{self.kernel.id}: it has no operand {name}= under these parameters; it takes"
                    f" {', '.join(self.inputs)}"
                )
        self._check({name: given.get(name) for name in self.inputs})
        return self.item.call(*operands, **named, **self.extra)

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

    def _check(self, given: Mapping[str, Any]) -> None:
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
        shape = shape_from(self.kernel, {name: tuple(v.shape) for name, v in given.items()})
        for name, operand in self.inputs.items():
            shared = operand.finite and self.kernel.row_axis(operand) is None
            if operand.below is not None or operand.positive or shared:
                self._look(operand, given[name], operand.limit(shape), shape)

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
        if bits.size > _SMALL:
            key = id(value)
            self._seen[key] = (
                weakref.ref(value, lambda _: self._seen.pop(key, None)),
                version,
                limit,
            )
