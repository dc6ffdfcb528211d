"""What can be changed in one instruction of PTX: rules from an instruction as written to others in its place.

A rule gives only what a compiler or an author could have got wrong; whether the executor takes it, the caller tries
(contract.engines.ptx.mutants). Another approximate function in the place of one is not among them: that one is allowed
to differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contract.engines.ptx.syntax import Statement

#: A fused multiply-add in two roundings: contracts allow both.
SPLIT = "fused multiply-add in two roundings"
#: Subnormals kept or flushed: profiles say whether they allow both.
FLUSH = "subnormals flushed or kept"
#: A constant beside the right one.
ULP = "float constant by one ulp"

_WRITTEN = re.compile(r"(?:@(!?)\s*(\S+)\s+)?(\S+)\s*(.*)\Z", re.DOTALL)
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)\Z")
_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]{8}|[0-9a-fA-F]{16})\Z")
_REGISTER = re.compile(r"%[A-Za-z_$]+\d+")
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\d+)\s*)?\]\Z")
_ORDERS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq",
           "lo": "ls", "ls": "lo", "hi": "hs", "hs": "hi",
           "ltu": "leu", "leu": "ltu", "gtu": "geu", "geu": "gtu", "equ": "neu", "neu": "equ"}  # fmt: skip
_ROUNDINGS = {"rn": ("rz", "rm", "rp"), "rni": ("rzi", "rmi", "rpi"), "rzi": ("rni",)}
# whose integers are no values: lanes, barriers, labels, the size of a copy
_NO_CONSTANTS = ("shfl", "bar", "barrier", "bra", "call", "ret", "mma", "ldmatrix", "vote")


@dataclass(frozen=True)
class Written:
    """One instruction in its parts, as they stand in the text."""

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")

    @property
    def text(self) -> str:
        guard = f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip() + ";"

    def named(self, opcode: str, *operands: str) -> Written:
        return Written(opcode, operands or self.operands, self.guard, self.negated)

    def at(self, place: int, operand: str) -> Written:
        changed = list(self.operands)
        changed[place] = operand
        return self.named(self.opcode, *changed)


@dataclass
class Known:
    """What stands before an instruction: register -> its type, and for each type the registers written, the last one last;
    register -> the instruction that wrote it last; registers written more than once are not `single`."""

    types: Mapping[str, str]
    single: set[str]
    written: dict[str, list[str]] = field(default_factory=dict)
    by: dict[str, Written] = field(default_factory=dict)

    def note(self, one: Written) -> None:
        """Go past an instruction."""
        for name in results(one):
            self.by[name] = one
            before = self.written.setdefault(self.types.get(name, ""), [])
            if name in before:
                before.remove(name)
            before.append(name)


def written(statement: Statement) -> Written | None:
    """The parts of a statement; None where it is not written the usual way."""
    found = _WRITTEN.match(statement.text)
    if not found or found[3] != statement.opcode:
        return None
    return Written(found[3], tuple(_split(found[4])), found[2] or "", bool(found[1]))


def _split(text: str) -> list[str]:
    """Operands: what commas outside of brackets part."""
    found, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "{[(") - (sign in "}])")
        if sign == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    rest = text[start:].strip()
    return [*found, rest] if rest else found


def _stores(one: Written) -> bool:
    return one.parts[0] in ("st", "red", "bra", "bar", "barrier", "cp", "call", "ret", "exit")


def results(one: Written) -> list[str]:
    """Registers that an instruction writes."""
    return _REGISTER.findall(one.operands[0]) if one.operands and not _stores(one) else []


Changed = Iterator[tuple[str, str]]
Rule = Callable[[Written, Known], Changed]


def _fused(one: Written, known: Known) -> Changed:
    if one.parts[0] != "fma" or one.parts[-1] not in ("f32", "f64"):
        return
    out, a, b, c = one.operands
    bits = "b" + one.parts[-1][1:]
    named = one.opcode.partition(".")[2]
    yield "fused multiply-add to its product", one.named(f"mul.{named}", out, a, b).text
    yield "fused multiply-add to its addend", one.named(f"mov.{bits}", out, c).text
    product = one.named(f"mul.{named}", "%mutant", a, b).text
    total = one.named(f"add.{named}", out, "%mutant", c).text
    yield SPLIT, f"{{ .reg .{bits} %mutant; {product} {total} }}"


def _rounding(one: Written, known: Known) -> Changed:
    if one.parts[0] == "cvt" and len(one.parts) > 2:
        for mode in _ROUNDINGS.get(one.parts[1], ()):
            opcode = ".".join(("cvt", mode, *one.parts[2:]))
            yield "rounding of a conversion", one.named(opcode).text


def _trip(one: Written, known: Known) -> Changed:
    """A value that was rounded to a narrow format and widened again: taken unrounded."""
    if one.parts[0] == "cvt" and one.parts[-1] in ("bf16", "f16") and one.parts[-2] == "f32":
        narrow = one.operands[-1]
    elif one.opcode == "mov.b32" and (
        low := re.match(r"\{\s*\S+\s*,\s*(\S+?)\s*\}", one.operands[-1])
    ):
        narrow = low[1]
    else:
        return
    before = known.by.get(narrow)
    if before and before.opcode in ("cvt.rn.bf16.f32", "cvt.rn.f16.f32") and narrow in known.single:
        yield "round trip dropped", one.named("mov.b32", one.operands[0], before.operands[-1]).text


def _shuffle(one: Written, known: Known) -> Changed:
    if one.parts[0] == "shfl" and _INTEGER.match(one.operands[2]):
        offset = int(one.operands[2], 0)
        for other in {offset * 2 % 32, offset // 2, 0} - {offset}:
            yield "offset of a shuffle", one.at(2, str(other)).text


def _barrier(one: Written, known: Known) -> Changed:
    if one.parts[0] in ("bar", "barrier", "membar", "fence"):
        yield "barrier removed", ";"
    if one.opcode.startswith("cp.async.wait"):
        yield "wait for copies removed", ";"


def _predicate(one: Written, known: Known) -> Changed:
    if one.guard:
        yield (
            "predicate inverted",
            Written(one.opcode, one.operands, one.guard, not one.negated).text,
        )
        yield "predicate dropped", Written(one.opcode, one.operands).text


def _constants(one: Written, known: Known) -> Changed:
    if one.parts[0] in _NO_CONSTANTS:
        return
    for place, operand in enumerate(one.operands):
        if found := _FLOAT.match(operand):
            yield from _float(one, place, found[1], int(found[2], 16), 4 * len(found[2]))
        elif _INTEGER.match(operand) and not (one.opcode.startswith("cp.async.c") and place > 1):
            for step in (1, -1):
                yield "integer constant by one", one.at(place, str(int(operand, 0) + step)).text


def _float(one: Written, place: int, prefix: str, bits: int, width: int) -> Changed:
    def of(value: int) -> str:
        return one.at(place, f"0{prefix}{value:0{width // 4}X}").text

    if bits in (0, 1 << width - 1):
        yield "zero to one", of(0x3F800000 if width == 32 else 0x3FF << 52)
        return
    yield ULP, of(bits + 1)
    yield "sign of a float constant", of(bits ^ 1 << width - 1)


def _offset(one: Written, known: Known) -> Changed:
    if one.parts[0] not in ("ld", "st", "ldmatrix", "cp") or "param" in one.parts:
        return
    size = max(16 if one.parts[0] in ("ldmatrix", "cp") else _bytes(one.opcode), 1)
    for place, operand in enumerate(one.operands):
        if found := _ADDRESS.match(operand):
            at = int(found[2] or 0)
            for other in (at + size, at - size):
                yield "offset of an address", one.at(place, f"[{found[1]}+{other}]").text


def _bytes(opcode: str) -> int:
    """Bytes that a load or store moves."""
    kind = opcode.rpartition(".")[2].lstrip("abcdefghijklmnopqrstuvwxyz")
    count = re.search(r"\.v(\d)", opcode)
    return int(kind or 0) // 8 * int(count[1] if count else 1)


def _product(one: Written, known: Known) -> Changed:
    if one.parts[0] != "mma":
        return
    a, b, c = one.operands[1:4]
    of_a, of_b, of_c = (_REGISTER.findall(x) for x in (a, b, c))

    def group(names: Sequence[str]) -> str:
        return "{" + ", ".join(names) + "}"

    kind = "operands of a matrix product"
    yield kind, one.at(1, group([of_b[0], *of_a[1:]])).text
    if len(of_b) > 1:
        yield kind, one.at(2, group(of_b[::-1])).text
    if len(of_a) > 1:
        yield kind, one.at(1, group([of_a[1], of_a[0], *of_a[2:]])).text
    bits = known.types.get(of_c[0], "b32")
    zeroed = one.at(3, group(["%mutant"] * len(of_c))).text
    yield "accumulator zeroed", f"{{ .reg .{bits} %mutant; mov.b32 %mutant, 0; {zeroed} }}"


def _opposite(one: Written, known: Known) -> Changed:
    kinds = {"add": "sub", "sub": "add", "min": "max", "max": "min"}
    for place, part in enumerate(one.parts):
        if part in kinds and (place == 0 or one.parts[0] in ("redux", "atom", "red")):
            parts = [*one.parts[:place], kinds[part], *one.parts[place + 1 :]]
            kind = "sum and difference" if part in ("add", "sub") else "minimum and maximum"
            yield kind, one.named(".".join(parts)).text


def _comparison(one: Written, known: Known) -> Changed:
    if one.parts[0] in ("setp", "set") and one.parts[1] in _ORDERS:
        parts = [one.parts[0], _ORDERS[one.parts[1]], *one.parts[2:]]
        yield "comparison", one.named(".".join(parts)).text


def _selection(one: Written, known: Known) -> Changed:
    if one.parts[0] == "selp" and one.operands[1] != one.operands[2]:
        out, a, b, p = one.operands
        yield "operands of a selection", one.named(one.opcode, out, b, a, p).text


def _narrowed(one: Written, known: Known) -> Changed:
    found = re.search(r"\.v([24])\.", one.opcode)
    if one.parts[0] != "st" or not found:
        return
    kept = _REGISTER.findall(one.operands[1])[: int(found[1]) // 2]
    opcode = one.opcode.replace(found[0], ".v2." if len(kept) == 2 else ".")
    value = "{" + ", ".join(kept) + "}" if len(kept) == 2 else kept[0]
    yield "store narrowed", one.named(opcode, one.operands[0], value).text


def _flush(one: Written, known: Known) -> Changed:
    if "f32" not in one.parts or one.parts[0] not in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2"):  # fmt: skip
        return
    if "ftz" in one.parts:
        yield FLUSH, one.named(one.opcode.replace(".ftz", "")).text
    else:
        yield FLUSH, one.named(one.opcode.replace(".f32", ".ftz.f32")).text


def _register(one: Written, known: Known) -> Changed:
    """Another register of the same type in the place of a source: the one written last."""
    first = 0 if _stores(one) else 1
    if one.parts[0] in ("bra", "mma", "call"):
        return
    for place in range(first, len(one.operands)):
        operand = one.operands[place]
        if not _REGISTER.fullmatch(operand):
            continue
        others = [
            r for r in known.written.get(known.types.get(operand, "?"), ()) if r not in one.operands
        ]
        if others:
            yield "another register", one.at(place, others[-1]).text


RULES: tuple[Rule, ...] = (
    _fused, _rounding, _trip, _shuffle, _barrier, _predicate, _constants, _offset, _product, _opposite, _comparison,
    _selection, _narrowed, _flush, _register,
)  # fmt: skip


def changed(one: Written, known: Known) -> Changed:
    """(kind, text in its place) of everything that the rules make of an instruction."""
    for rule in RULES:
        for kind, text in rule(one, known):
            if text != one.text:
                yield kind, text


__all__ = ["FLUSH", "SPLIT", "ULP", "Known", "Written", "changed", "results", "written"]
