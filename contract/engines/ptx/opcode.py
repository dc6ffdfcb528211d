"""How an instruction is described: its spellings in the notation of the PTX ISA, and what it computes.

A row of the table is a pattern such as `add rnd=rn|rz|rm|rp? ftz? sat? type=f32`:
words that stand as they are, `name=a|b|c` for one of several, a `?` for what may be left out.
Every spelling that a pattern produces is an instruction; nothing else is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Call: TypeAlias = Callable[..., Any]

UNSIGNED: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


@dataclass(frozen=True)
class Semantics:
    """What one instruction computes from its registers.

    Attributes:
        call: the raw bits of all lanes, one array for each source, to one array or a tuple of them.
            Arrays have a dimension at least and broadcast; none is changed; garbage raises nothing.
        sources: how each source is read: pred (bool) or b8, b16, b32, b64 (unsigned).
            Operands in braces are flattened in order.
        results: the same for what is computed; one may be left unwritten (the q of `p|q`).
        approximate: whether `call` takes skew=-1, 0 or 1: the lower end of what the ISA allows,
            the value to nearest, the upper end.
        warp: whether arrays are (warps, 32) and `call` takes active=(warps, 32) bool.
        carry: whether the last source and the last result are the condition code's carry.
        signed: whether a result is sign-extended into a register that is wider.
        product: of mma, what executes several at once (contract.engines.ptx.matrix.Product).
    """

    call: Call
    sources: tuple[str, ...]
    results: tuple[str, ...]
    approximate: bool = False
    warp: bool = False
    carry: tuple[bool, bool] = (False, False)
    signed: bool = False
    product: Any = None


@dataclass(frozen=True)
class Row:
    """One pattern of spellings and what builds the semantics from the chosen fields."""

    pattern: str
    build: Callable[..., Semantics]

    @property
    def mnemonic(self) -> str:
        """The part before the first dot."""
        return self.pattern.split()[0]

    def _choices(self) -> list[list[tuple[str, str, Any]]]:
        """For each word of the pattern: (field or "", spelling, value)."""
        choices: list[list[tuple[str, str, Any]]] = []
        for word in self.pattern.split()[1:]:
            optional = word.endswith("?")
            name, _, values = word.rstrip("?").partition("=")
            if values:
                options: list[tuple[str, str, Any]] = [
                    (name, "." + value, value) for value in values.split("|")
                ]
                choices.append(options + ([(name, "", "")] if optional else []))
            elif optional:
                choices.append([(name, "." + name, True), (name, "", False)])
            else:
                choices.append([("", "." + name, True)])
        return choices

    def _spell(self, chosen: tuple[tuple[str, str, Any], ...]) -> tuple[str, dict[str, Any]]:
        opcode = self.mnemonic + "".join(spelling for _, spelling, _ in chosen)
        return opcode, {name: value for name, _, value in chosen if name}

    def spellings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every opcode of this row with its fields."""
        return map(self._spell, itertools.product(*self._choices()))

    def samples(self) -> list[str]:
        """Opcodes in which each value of each field occurs, the others at their last one."""
        choices = self._choices()
        plain = [options[-1] for options in choices]
        sampled = [self._spell(tuple(plain))[0]]
        for place, options in enumerate(choices):
            for option in options[:-1]:
                sampled.append(self._spell((*plain[:place], option, *plain[place + 1 :]))[0])
        return sampled


def bits(kind: str) -> int:
    """Bits of a register of that type: s32 has 32, bf16x2 has 32."""
    width = int(kind.removesuffix("x2").lstrip("abcdefghijklmnopqrstuvwxyz"))
    return 2 * width if kind.endswith("x2") else width


def raw(kind: str) -> str:
    """How a register of that type is read: pred as it is, s32 as b32."""
    return kind if kind == "pred" else f"b{bits(kind)}"


def number(kind: str) -> Any:
    """The NumPy type of an integer type or of untyped bits."""
    return (SIGNED if kind[0] == "s" else UNSIGNED)[bits(kind)]


_loud: dict[Call, Call] = {}


def loud(call: Call) -> Call:
    """What `quiet` was given, for a caller that is quiet itself: it is a tenth of the time of a short call."""
    return _loud.get(call, call)


def quiet(call: Call) -> Call:
    """The same where lanes may overflow, divide by zero or be invalid without a warning."""

    @functools.wraps(call)
    def silent(*sources: Array, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(*sources, **options)

    _loud[silent] = call
    return silent


def alike(*sources: Array) -> tuple[Array, ...]:
    """Arrays of one shape; those that have it already cost nothing."""
    shape = sources[0].shape
    if all(x.shape == shape for x in sources):
        return sources
    shape = np.broadcast_shapes(*(x.shape for x in sources))
    return tuple(np.broadcast_to(x, shape) for x in sources)


def pairwise(call: Call) -> Call:
    """A function of 16-bit values on both halves of 32-bit registers."""

    def both(*sources: Array) -> Array:
        whole = (np.ascontiguousarray(x) for x in alike(*sources))
        found: Array = np.ascontiguousarray(call(*(x.view(np.uint16) for x in whole)))
        return found.view(np.uint32)

    return both


CHUNK = 1 << 13


def chunked(call: Call) -> Call:
    """The same of many lanes in pieces: a step of twenty passes is twice as fast where its arrays stay in the cache."""

    def run(*sources: Array, **options: Any) -> Any:
        count = max(x.size for x in sources)
        if count <= CHUNK or any(x.ndim > 1 or x.size not in (1, count) for x in sources):
            return call(*sources, **options)
        pieces = [
            call(*(x if x.size == 1 else x[i : i + CHUNK] for x in sources), **options)
            for i in range(0, count, CHUNK)
        ]
        return np.concatenate(pieces)

    return run


def join(low: Array, high: Array) -> Array:
    """Two 16-bit values in one 32-bit register."""
    joined: Array = low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))
    return joined
