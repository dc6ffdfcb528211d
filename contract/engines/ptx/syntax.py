"""What the parser makes of PTX text: a module of functions and variables, statements with their operands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

# modifiers of an access that others may answer to
STRONG = frozenset(["volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"])


@dataclass(frozen=True, slots=True)
class Name:
    """A register, variable, label, function or special register; which one, the scope says."""

    text: str


@dataclass(frozen=True, slots=True)
class Integer:
    value: int


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point constant: the value's bits at its own width (32 or 64)."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]; base is None for an absolute address."""

    base: Name | None
    offset: int


@dataclass(frozen=True, slots=True)
class Group:
    """{a, b, ...}: a vector operand; in parentheses, the arguments of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """a|b: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """!p: a negated predicate; with minus, a negated register."""

    of: Name


Operand = Name | Integer | Float | Address | Group | Pair | Not


@dataclass(frozen=True, slots=True)
class RegisterDeclared:
    name: str
    type: str
    vector: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a state space; `count` None stands for [] (its size is given at the launch)."""

    name: str
    space: str
    type: str
    align: int
    count: int | None
    vector: int
    initial: tuple[Initial, ...]
    line: int

    @property
    def bytes(self) -> int:
        return (self.count or 0) * self.vector * width(self.type) // 8


Initial = int | Float | tuple[str, int]


@dataclass(slots=True)
class LabelDeclared:
    name: str
    line: int


@dataclass(slots=True)
class Targets:
    """.branchtargets: the labels that a brx.idx may go to."""

    labels: tuple[str, ...]


Declared = RegisterDeclared | Variable | LabelDeclared | Targets


@dataclass(slots=True)
class Scope:
    """The names declared between a pair of braces; `ranges` are families like %r<100>."""

    parent: Scope | None = None
    names: dict[str, Declared] = field(default_factory=dict)
    ranges: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def find(self, name: str) -> tuple[Scope, Declared] | None:
        """The innermost declaration of a name, and the scope that holds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope, scope.names[name]
            if found := scope.of_range(name):
                return scope, found
            scope = scope.parent
        return None

    def of_range(self, name: str) -> RegisterDeclared | None:
        match = _NUMBERED.match(name)
        if match and match[1] in self.ranges:
            kind, count, vector = self.ranges[match[1]]
            if int(match[2]) < count and str(int(match[2])) == match[2]:
                made = RegisterDeclared(name, kind, vector)
                self.names[name] = made
                return made
        return None


_NUMBERED = re.compile(r"^(.*?[^0-9])([0-9]{1,9})$")


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction as written."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: str | None
    negated: bool
    line: int
    text: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class Label:
    declared: LabelDeclared


@dataclass(frozen=True, slots=True)
class Function:
    """An .entry or .func; `body` is None where it is only declared."""

    name: str
    entry: bool
    params: tuple[Variable, ...]
    results: tuple[Variable, ...]
    scope: Scope
    body: tuple[Statement | Label, ...] | None
    directives: dict[str, tuple[int, ...]]
    line: int

    def offsets(self) -> dict[str, tuple[int, int]]:
        """Of each parameter of an entry, where it begins in the parameter block, and its bytes."""
        found, at = {}, 0
        for param in self.params:
            at = -(-at // param.align) * param.align
            found[param.name] = (at, param.bytes)
            at += param.bytes
        return found

    @property
    def parameter_bytes(self) -> int:
        return max((at + size for at, size in self.offsets().values()), default=0)


@dataclass(slots=True)
class Module:
    """A whole PTX text.

    Attributes:
        files: names of source files by their numbers.
        locations: (line of the text, number of a file, line of that) of each .loc; of code from another function that was
            inlined, where it was called.
    """

    version: str = ""
    target: tuple[str, ...] = ()
    entries: dict[str, Function] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)
    files: dict[int, str] = field(default_factory=dict)
    locations: list[tuple[int, int, int]] = field(default_factory=list)


_TYPE = re.compile(
    r"^(pred|(?:u|s|b|f|bf|tf)(\d+)(?:x(\d+))?|e\dm\d(?:x(\d+))?|ue\dm\d(?:x(\d+))?)$"
)
TYPES = re.compile(r"^\.(pred|[usb](8|16|32|64|128)|f(16|16x2|32|64)|bf16(x2)?|tf32|e4m3|e5m2)$")


@lru_cache(1024)
def width(kind: str) -> int:
    """Bits of a type as written without its dot; 1 for pred, 0 for what is no type."""
    match = _TYPE.match(kind)
    if not match:
        return 0
    if kind == "pred":
        return 1
    times = int(match[3] or match[4] or match[5] or 1)
    return (int(match[2]) if match[2] else 8) * times
