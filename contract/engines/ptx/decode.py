"""One entry decoded: registers numbered, variables laid out, device functions inlined, basic blocks made.

A device function is copied to each place that calls it, its parameters being the caller's, so that recursion cannot be
executed.

Source: PTX ISA, sections 6 (operands), 7.1 (the function ABI), 9.7.12 (control flow).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.engines.ptx import flow
from contract.engines.ptx.decoded import (
    UNSIGNED,
    Block,
    Constant,
    GlobalVariable,
    Instruction,
    Memory,
    Negated,
    Parameter,
    Place,
    Program,
    Register,
    Sink,
    Special,
    Two,
    Vector,
    constant_bits,
)
from contract.engines.ptx.faults import Malformed, Unsupported
from contract.engines.ptx.syntax import (
    Address,
    Float,
    Function,
    Group,
    Integer,
    Label,
    LabelDeclared,
    Module,
    Name,
    Not,
    Operand,
    Pair,
    RegisterDeclared,
    Statement,
    Targets,
    Variable,
    width,
)

# a block of instructions begins with one of these: lanes of a warp may have to wait for others there
MEETING = frozenset(
    [
        "bar",
        "barrier",
        "shfl",
        "vote",
        "match",
        "redux",
        "elect",
        "ldmatrix",
        "stmatrix",
        "movmatrix",
        "mma",
    ]
)
ENDING = frozenset(["bra", "brx", "exit", "ret", "trap", "bar", "barrier"])
MOST_INLINED = 200_000


@dataclass(slots=True)
class Instance:
    """One copy of a function: where its names lie."""

    number: int
    function: Function
    formals: dict[str, Any]
    end: int | None


class Decoder:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module, self.entry = module, entry
        self.program = Program(entry.name, entry)
        self.flat: list[Instruction | int] = []
        self.labels: dict[tuple[int, int], int] = {}
        self.label_count = 0
        self.registers: dict[tuple[int, int, str], Register] = {}
        self.places: dict[tuple[int, int], Place] = {}
        self.instances = 0
        self.instance = Instance(0, entry, {}, None)
        self.offsets = entry.offsets()
        self.pending: list[tuple[Variable, GlobalVariable]] = []

    # functions

    def function(
        self, function: Function, formals: dict[str, Any], stack: tuple[str, ...], end: int | None
    ) -> None:
        before = self.instance
        self.instances += 1
        self.instance = Instance(self.instances, function, formals, end)
        for item in function.body or ():
            if len(self.flat) > MOST_INLINED:
                raise Unsupported(
                    f"{self.entry.name}: more than {MOST_INLINED} instructions with calls inlined"
                )
            if isinstance(item, Label):
                self.flat.append(self.label(item.declared))
            elif item.opcode.split(".")[0] == "call":
                self.call(item, stack)
            else:
                self.statement(item)
        self.instance = before

    def label(self, declared: LabelDeclared) -> int:
        key = (self.instance.number, id(declared))
        if key not in self.labels:
            self.labels[key] = self.new_label()
        return self.labels[key]

    def new_label(self) -> int:
        self.label_count += 1
        return self.label_count

    def call(self, item: Statement, stack: tuple[str, ...]) -> None:
        groups = [o for o in item.operands if isinstance(o, Group)]
        names = [o for o in item.operands if isinstance(o, Name)]
        if len(names) != 1 or len(names) + len(groups) != len(item.operands):
            raise Unsupported(f"line {item.line}: {item.text}: an indirect call")
        target = self.module.functions.get(names[0].text)
        if target is None:
            raise Unsupported(
                f"line {item.line}: {item.text}: an indirect call, or of what is not declared"
            )
        first_is_result = isinstance(item.operands[0], Group)
        results = groups[0].items if first_is_result else ()
        arguments = groups[-1].items if len(groups) > first_is_result else ()
        if target.body is None:
            self.external(item, target.name, arguments)
            return
        if target.name in stack:
            raise Unsupported(f"line {item.line}: {item.text}: a recursive call")
        if len(arguments) != len(target.params) or len(results) != len(target.results):
            raise Malformed(
                f"line {item.line}: expected {len(target.params)} arguments and {len(target.results)} results of"
                f" {target.name}, found {len(arguments)} and {len(results)}"
            )
        self.inlined(item, target, results, arguments, stack)

    def inlined(
        self,
        item: Statement,
        target: Function,
        results: tuple[Operand, ...],
        arguments: tuple[Operand, ...],
        stack: tuple[str, ...],
    ) -> None:
        after, end = self.new_label(), self.new_label()
        if item.guard is not None:
            guard = self.guard(item)
            self.emit("bra", (), item.line, item.text, guard, not item.negated, (after,))
        formals: dict[str, Any] = {}
        copies: list[tuple[Register, Any, str]] = []
        back: list[tuple[Any, Any, str]] = []
        for formal, actual in zip(target.params, arguments, strict=True):
            given = self.operand(actual, item)
            if formal.space == "reg":
                formals[formal.name] = made = self.new_register(formal.type)
                copies.append((made, given, formal.type))
            else:
                formals[formal.name] = self.passed(given, formal, item)
        for formal, actual in zip(target.results, results, strict=True):
            given = self.operand(actual, item)
            if formal.space == "reg":
                formals[formal.name] = made = self.new_register(formal.type)
                back.append((given, made, formal.type))
            elif isinstance(given, Place):
                formals[formal.name] = given
            else:
                place = self.allocate_local(formal.bytes, formal.align)
                formals[formal.name] = place
                back.append((given, Memory(place, 0), formal.type))
        for to, what, kind in copies:
            self.emit(f"mov.{kind}", (to, what), item.line, item.text)
        self.function(target, formals, (*stack, target.name), end)
        self.flat.append(end)
        for to, what, kind in back:
            opcode = f"ld.local.{kind}" if isinstance(what, Memory) else f"mov.{kind}"
            self.emit(opcode, (to, what), item.line, item.text)
        self.flat.append(after)

    def passed(self, given: Any, formal: Variable, item: Statement) -> Place:
        """The memory of a .param argument: the caller's variable itself, or a new one that a register is put in."""
        if isinstance(given, Place):
            if given.bytes != formal.bytes:
                raise Malformed(
                    f"line {item.line}: expected {formal.bytes} bytes for {formal.name}, found {given.bytes}"
                )
            return given
        place = self.allocate_local(formal.bytes, formal.align)
        self.emit(f"st.local.{formal.type}", (Memory(place, 0), given), item.line, item.text)
        return place

    def external(self, item: Statement, name: str, arguments: tuple[Operand, ...]) -> None:
        if name not in ("vprintf", "__assertfail"):
            raise Unsupported(
                f"line {item.line}: {item.text}: a call of {name}, which is not in the module"
            )
        if name == "__assertfail":
            given = tuple(Memory(self.operand(a, item), 0) for a in arguments)
            guard = self.guard(item) if item.guard is not None else None
            self.emit("assertfail", given, item.line, item.text, guard, item.negated)

    # statements

    def statement(self, item: Statement) -> None:
        opcode, root = item.opcode, item.opcode.split(".")[0]
        guard = self.guard(item) if item.guard is not None else None
        if root == "ret" and self.instance.end is not None:
            self.emit("bra", (), item.line, item.text, guard, item.negated, (self.instance.end,))
            return
        if root in ("bra", "brx"):
            operands, targets = self.branch(item)
            self.emit(opcode, operands, item.line, item.text, guard, item.negated, targets)
            return
        operands = tuple(self.operand(o, item) for o in item.operands)
        self.emit(opcode, operands, item.line, item.text, guard, item.negated)

    def branch(self, item: Statement) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        if not item.operands or not isinstance(item.operands[-1], Name):
            raise Malformed(f"line {item.line}: expected a label, found {item.text!r}")
        found = item.scope.find(item.operands[-1].text)
        declared = found[1] if found else None
        if item.opcode.startswith("brx"):
            if not isinstance(declared, Targets) or len(item.operands) != 2:
                raise Malformed(
                    f"line {item.line}: expected an index and .branchtargets, found {item.text!r}"
                )
            targets = tuple(self.target(name, item) for name in declared.labels)
            return (self.operand(item.operands[0], item),), targets
        if len(item.operands) != 1:
            raise Malformed(f"line {item.line}: expected one label, found {item.text!r}")
        return (), (self.target(item.operands[0].text, item),)  # type: ignore[union-attr]  # a Name, as looked at above

    def target(self, name: str, item: Statement) -> int:
        found = item.scope.find(name)
        if found is None or not isinstance(found[1], LabelDeclared):
            raise Malformed(f"line {item.line}: expected a label, found {name!r}, which is none")
        return self.label(found[1])

    def guard(self, item: Statement) -> Register:
        found = self.name(item.guard or "", item)
        if not isinstance(found, Register) or found.width != 1:
            raise Malformed(f"line {item.line}: expected a predicate, found {item.guard!r}")
        return found

    def emit(
        self,
        opcode: str,
        operands: tuple[Any, ...],
        line: int,
        text: str,
        guard: Register | None = None,
        negated: bool = False,
        targets: tuple[int, ...] = (),
    ) -> None:
        made = Instruction(opcode, operands, guard, negated, line, text, targets)
        flow.mark(made)
        self.flat.append(made)

    # operands

    def operand(self, what: Operand, item: Statement) -> Any:
        if isinstance(what, Integer):
            return Constant(what.value)
        if isinstance(what, Float):
            return Constant(what.bits, what.width)
        if isinstance(what, Group):
            return Vector(tuple(self.operand(i, item) for i in what.items))
        if isinstance(what, Pair):
            return Two(self.operand(what.first, item), self.operand(what.second, item))
        if isinstance(what, Not):
            found = self.name(what.of.text, item)
            if not isinstance(found, Register) or found.width != 1:
                raise Malformed(
                    f"line {item.line}: expected a predicate after '!', found {what.of.text!r}"
                )
            return Negated(found)
        if isinstance(what, Address):
            return self.address(what, item)
        return self.name(what.text, item)

    def address(self, what: Address, item: Statement) -> Memory:
        base = None if what.base is None else self.name(what.base.text, item)
        if base is not None and not isinstance(base, (Register, Place, Parameter)):
            raise Malformed(f"line {item.line}: expected an address, found {item.text!r}")
        return Memory(base, what.offset)

    def name(self, text: str, item: Statement) -> Any:
        if text == "_":
            return Sink()
        if text in self.instance.formals:
            return self.instance.formals[text]
        found = item.scope.find(text)
        if found is None:
            return self.undeclared(text, item)
        scope, declared = found
        if isinstance(declared, RegisterDeclared):
            return self.register(id(scope), declared, item)
        if isinstance(declared, Variable):
            return self.variable(declared)
        raise Malformed(
            f"line {item.line}: expected a register or variable, found the label {text!r}"
        )

    def undeclared(self, text: str, item: Statement) -> Any:
        base, _, element = text.rpartition(".")
        found = item.scope.find(base) if base else None
        if found and isinstance(found[1], RegisterDeclared) and element in tuple("xyzwrgba"):
            names = {"r": "x", "g": "y", "b": "z", "a": "w"}
            whole = self.register(id(found[0]), found[1], item)
            at = "xyzw".index(names.get(element, element))
            if isinstance(whole, Vector) and at < len(whole.items):
                return whole.items[at]
        if text.startswith("%") and not found:
            return Special(text)
        raise Malformed(f"line {item.line}: expected a declared name, found {text!r}")

    def register(self, scope: int, declared: RegisterDeclared, item: Statement) -> Any:
        if width(declared.type) not in UNSIGNED:
            raise Unsupported(f"line {item.line}: {item.text}: registers of type .{declared.type}")
        if declared.vector > 1:
            made = [
                self.one(scope, f"{declared.name}.{i}", declared.type)
                for i in range(declared.vector)
            ]
            return Vector(tuple(made))
        return self.one(scope, declared.name, declared.type)

    def one(self, scope: int, name: str, kind: str) -> Register:
        key = (self.instance.number, scope, name)
        if key not in self.registers:
            self.registers[key] = self.new_register(kind)
        return self.registers[key]

    def new_register(self, kind: str) -> Register:
        made = Register(len(self.program.widths), width(kind))
        self.program.widths.append(made.width)
        return made

    def variable(self, declared: Variable) -> Place | Parameter:
        if (
            declared.space == "param"
            and declared.name in self.offsets
            and declared in self.entry.params
        ):
            return Parameter(self.offsets[declared.name][0])
        own = declared.space in ("local", "param")
        key = (self.instance.number if own else 0, id(declared))
        if key not in self.places:
            self.places[key] = self.allocate(declared)
        return self.places[key]

    def allocate(self, declared: Variable) -> Place:
        program = self.program
        if declared.space in ("local", "param"):
            return self.allocate_local(declared.bytes, declared.align)
        if declared.space == "shared":
            if declared.initial:
                raise Malformed(f"line {declared.line}: expected no initialiser of shared memory")
            if declared.count is None:
                program.dynamic_align = max(program.dynamic_align, declared.align)
                return Place("shared", 0, dynamic=True)
            at = -(-program.shared_bytes // declared.align) * declared.align
            program.shared_bytes = at + declared.bytes
            return Place("shared", at, bytes=declared.bytes)
        size = max(declared.bytes, 1)
        # NumPy aligns by 16; a variable may ask for more
        room = np.zeros(size + 1024, np.uint8)
        skip = -room.ctypes.data % 1024
        made = GlobalVariable(declared.name, room.ctypes.data + skip, room[skip : skip + size])
        program.globals.append(made)
        self.pending.append((declared, made))
        return Place("global", made.address, bytes=size)

    def allocate_local(self, size: int, align: int) -> Place:
        at = -(-self.program.local_bytes // align) * align
        self.program.local_bytes = at + size
        return Place("local", at, bytes=size)

    def initialise(self) -> None:
        """Fill global variables; one that holds an address of another brings that one in."""
        while self.pending:
            declared, made = self.pending.pop()
            bits = width(declared.type)
            if bits not in (8, 16, 32, 64) and declared.initial:
                raise Unsupported(f"line {declared.line}: initialisers of type .{declared.type}")
            for i, value in enumerate(declared.initial):
                raw = self.initial(value, bits, declared)
                made.view[i * bits // 8 : (i + 1) * bits // 8] = np.frombuffer(
                    (raw & ((1 << bits) - 1)).to_bytes(bits // 8, "little"), np.uint8
                )

    def initial(self, value: Any, bits: int, declared: Variable) -> int:
        if isinstance(value, Float):
            return constant_bits(Constant(value.bits, value.width), bits)
        if isinstance(value, int):
            if declared.type.startswith(("f", "bf")):
                number = struct.pack("<d" if bits == 64 else "<f", float(value))
                return int.from_bytes(number, "little")
            return value
        other = self.module.variables.get(value[0])
        if other is None or other.space not in ("global", "const"):
            raise Unsupported(
                f"line {declared.line}: an initialiser with the address of {value[0]}"
            )
        place = self.variable(other)
        assert isinstance(place, Place)
        return place.address + int(value[1])

    # blocks

    def finish(self) -> Program:
        self.initialise()
        program = self.program
        program.slot_count = len(program.widths)
        where: dict[int, int] = {}
        current = Block(0, [])
        program.blocks.append(current)

        def new() -> Block:
            made = Block(len(program.blocks), [])
            program.blocks.append(made)
            return made

        for item in self.flat:
            if isinstance(item, int):
                if current.body or current.end:
                    current = new()
                where[item] = current.number
                continue
            if current.end is not None or (item.root in MEETING and current.body):
                current = new()
            current.meets |= item.root in MEETING
            if item.root in ENDING:
                current.end = item
            else:
                current.body.append(item)
        # the last block is the exit that was added, so every label has a place
        for block in program.blocks:
            if block.end is not None:
                for label in block.end.targets:
                    if label not in where:
                        raise Malformed(f"line {block.end.line}: expected a label with a place")
                block.end.targets = tuple(where[label] for label in block.end.targets)
        return program
