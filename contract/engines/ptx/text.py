"""PTX source to a Module.

Read are the directives and the syntax of what LLVM's NVPTX back end (Triton), nvcc and TileLang emit. Line tables and
debug sections are skipped; an instruction's meaning is not looked at here (see contract.engines.ptx.program).

Source: PTX ISA, sections 4 (Syntax), 5 (State Spaces, Types, and Variables), 6 (Instruction Operands), 11 (Directives).
"""

from __future__ import annotations

import struct

from contract.engines.ptx.cursor import DEEPEST, Cursor, integer_of
from contract.engines.ptx.faults import Malformed, Unsupported
from contract.engines.ptx.syntax import (
    Address,
    Float,
    Function,
    Group,
    Initial,
    Integer,
    Label,
    LabelDeclared,
    Module,
    Name,
    Not,
    Operand,
    Pair,
    RegisterDeclared,
    Scope,
    Statement,
    Targets,
    Variable,
    width,
)

LINKING = (".visible", ".extern", ".weak", ".common")
SPACES = (".global", ".const", ".shared", ".local", ".param")
# of an entry or function, before its body: their numbers are kept
PERFORMANCE = [
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".reqnctapercluster",
    ".explicitcluster",
    ".maxclusterrank",
    ".noreturn",
    ".abi_preserve",
    ".abi_preserve_control",
    ".blocksareclusters",
]
# what one declaration may take: more would only exhaust this machine
MOST_BYTES = 1 << 31


def parse(source: str) -> Module:
    """The module of a PTX text.

    Raises:
        Malformed: it is no PTX; the message has the line and what was expected there.
        Unsupported: a directive that the executor does not know.
    """
    return _Parser(source).module()


# what LLVM writes around inline assembly
_BEGIN, _END = "// begin inline asm", "// end inline asm"


class _Parser(Cursor):
    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.found = Module()

    # the module

    def module(self) -> Module:
        while self.next.kind != "end":
            self.top()
        if not self.found.version or not self.found.target:
            raise Malformed(
                "line 1: expected '.version' and '.target', found neither or one of them"
            )
        return self.found

    def top(self) -> None:
        token = self.next
        if token.text == ".version":
            self.take()
            self.found.version = self.kind("float", "a version like 8.0")
        elif token.text == ".target":
            self.take()
            self.found.target = tuple(self.names())
        elif token.text == ".address_size":
            self.take()
            if self.number() != 64:
                raise Unsupported(f"line {token.line}: .address_size other than 64")
        elif token.text in (".file", ".section", ".pragma", ".loc"):
            self.skipped()
        elif token.text in (".alias", ".attribute"):
            raise Unsupported(f"line {token.line}: directive {token.text}")
        elif token.text == ";":
            self.take()
        else:
            self.definition()

    def definition(self) -> None:
        external = False
        while link := self.accept(*LINKING):
            external |= link == ".extern"
        if self.next.text in (".entry", ".func"):
            self.function()
        elif self.next.text in SPACES:
            for variable in self.variables(self.found.scope, external=external):
                self.found.variables[variable.name] = variable
        elif self.next.kind == "dot":
            known = self.next.text in (
                ".tex",
                ".surfref",
                ".texref",
                ".samplerref",
                ".callprototype",
            )
            kind = Unsupported if known else Malformed
            raise kind(f"line {self.next.line}: directive {self.next.text}")
        else:
            raise self.wrong("a directive")

    def names(self) -> list[str]:
        found = [self.kind("name", "a name")]
        while self.accept(","):
            found.append(self.kind("name", "a name"))
        return found

    def skipped(self) -> None:
        """.file, .loc, .section and .pragma: for debuggers and the assembler's heuristics."""
        which = self.take().text
        if which == ".pragma":
            self.kind("text", "a string")
            while self.accept(","):
                self.kind("text", "a string")
            self.expect(";")
        elif which == ".file":
            number = self.number()
            self.found.files[number] = self.kind("text", "a file name").strip('"')
            while self.accept(","):
                self.number()
        elif which == ".loc":
            start, at = self.next.start, self.next.line
            file, line = self.place("a number of .loc")
            while self.next.text == "," and self.tokens[self.at + 1].text in (
                "function_name",
                "inlined_at",
            ):
                self.take()
                if self.take().text == "function_name":
                    self.kind("name", "a label")
                    if self.accept("+"):
                        self.number()
                else:
                    file, line = self.place("a number of inlined_at")
            # LLVM counts the lines of inline assembly on from the line that has it: the one in front is the source's
            if not self.inline(start):
                self.found.locations.append((at, file, line))
        else:
            self.section()

    def inline(self, start: int) -> bool:
        """Whether this place of the text lies in inline assembly, as comments tell."""
        before = self.source.rfind(_BEGIN, 0, start)
        return before >= 0 and self.source.find(_END, before, start) < 0

    def place(self, expected: str) -> tuple[int, int]:
        """The file and the line of three numbers; the third is a column."""
        numbers = []
        for _ in range(3):
            if self.next.kind != "number":
                raise self.wrong(expected)
            numbers.append(integer_of(self.take()))
        return numbers[0], numbers[1]

    def section(self) -> None:
        self.kind("dot", "a section's name")
        self.expect("{")
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise Malformed(f"line {token.line}: expected '}}' of a .section, found the end")
            depth += {"{": 1, "}": -1}.get(token.text, 0)

    # declarations

    def align(self) -> int:
        if not self.accept(".align"):
            return 0
        line, value = self.next.line, self.number()
        if value < 1 or value > 1024 or value & (value - 1):
            raise Malformed(
                f"line {line}: expected an alignment that is a power of two, found {value}"
            )
        return value

    def vector(self) -> int:
        return int((self.accept(".v2", ".v4", ".v8") or ".v1")[2:])

    def variables(self, scope: Scope, *, external: bool = False) -> list[Variable]:
        """One declaration of a state space: `.shared .align 4 .b8 a[16], b[8];`"""
        line, space = self.next.line, self.take().text[1:]
        align, vector = self.align(), self.vector()
        if self.next.text in (".texref", ".samplerref", ".surfref", ".managed", ".attribute"):
            raise Unsupported(f"line {line}: directive {self.next.text}")
        align = align or self.align()
        kind = self.type()
        if kind == "pred":
            raise Malformed(f"line {line}: expected a type of memory, found '.pred'")
        found = [self.declared(scope, space, kind, align, vector, external=external)]
        while self.accept(","):
            found.append(self.declared(scope, space, kind, align, vector, external=external))
        self.expect(";")
        return found

    def declared(
        self, scope: Scope, space: str, kind: str, align: int, vector: int, *, external: bool
    ) -> Variable:
        line, name = self.next.line, self.kind("name", "a variable's name")
        initial: tuple[Initial, ...] = ()
        count = self.extent()
        if self.accept("="):
            initial = tuple(self.initialiser())
            if count is None:
                count = len(initial)
            if len(initial) > count * vector:
                raise Malformed(
                    f"line {line}: expected at most {count * vector} initialisers of {name}, found {len(initial)}"
                )
        if count is None and not (space in ("shared", "param") or external):
            raise Malformed(f"line {line}: expected a size of {name}, found '[]'")
        if external and space in ("global", "const"):
            raise Unsupported(f"line {line}: external variable {name}")
        natural = max(width(kind) // 8, 1) * vector
        made = Variable(name, space, kind, align or natural, count, vector, initial, line)
        if made.bytes > MOST_BYTES:
            raise Malformed(
                f"line {line}: expected a size below {MOST_BYTES} bytes, found {made.bytes}"
            )
        self.declare(scope, name, made, line)
        return made

    def extent(self) -> int | None:
        """The elements of `[n][m]...`; None for `[]`, 1 for a scalar."""
        count: int | None = 1
        while self.accept("["):
            if self.accept("]"):
                count = None
                continue
            line, value = self.next.line, self.number()
            if not 0 <= value <= MOST_BYTES or (count or 0) * value > MOST_BYTES:
                raise Malformed(f"line {line}: expected a size, found {value}")
            self.expect("]")
            count = value if count is None else count * value
        return count

    def initialiser(self) -> list[Initial]:
        found: list[Initial] = []
        if not self.accept("{"):
            return [self.initial()]
        self.enter()
        while not self.accept("}"):
            found.extend(self.initialiser())
            if self.next.text != "}":
                self.expect(",")
        self.depth -= 1
        return found

    def initial(self) -> Initial:
        token = self.next
        if token.kind == "float":
            return self.floating(1)
        if token.text in ("generic", "mask"):
            if token.text == "mask":
                raise Unsupported(f"line {token.line}: mask() in an initialiser")
            self.take()
            self.expect("(")
            name = self.kind("name", "a variable")
            self.expect(")")
            return name, self.signed_offset()
        if token.kind == "name":
            return self.take().text, self.signed_offset()
        if token.text == "-" and self.tokens[self.at + 1].kind == "float":
            self.take()
            return self.floating(-1)
        return self.number()

    def signed_offset(self) -> int:
        if self.next.text not in ("+", "-"):
            return 0
        sign = -1 if self.take().text == "-" else 1
        return sign * self.number()

    def registers(self, scope: Scope) -> None:
        """`.reg .b32 %r<8>, %x;` and `.reg .v4 .f32 %v;`"""
        self.take()
        vector = self.vector()
        line, kind = self.next.line, self.type()
        while True:
            name = self.kind("name", "a register")
            if self.accept("<"):
                count = self.number()
                self.expect(">")
                if name in scope.ranges or not 0 <= count < 1 << 24:
                    raise Malformed(
                        f"line {line}: expected a new family of registers, found {name}<{count}>"
                    )
                scope.ranges[name] = (kind, count, vector)
            else:
                self.declare(scope, name, RegisterDeclared(name, kind, vector), line)
            if not self.accept(","):
                break
        self.expect(";")

    def declare(self, scope: Scope, name: str, what: object, line: int) -> None:
        if name in scope.names:
            # the same external array may be declared again, at the module's level only
            before = scope.names[name]
            if scope.parent is None and isinstance(before, Variable) and before.count is None:
                return
            raise Malformed(
                f"line {line}: expected a new name, found {name}, which is declared already"
            )
        scope.names[name] = what  # type: ignore[assignment]  # every caller passes a Declared

    # functions

    def function(self) -> None:
        entry = self.take().text == ".entry"
        scope = Scope(self.found.scope)
        line = self.next.line
        results = () if entry or self.next.text != "(" else self.formals(scope)
        name = self.kind("name", "a function's name")
        params = self.formals(scope) if self.next.text == "(" else ()
        directives: dict[str, tuple[int, ...]] = {}
        while self.next.kind == "dot":
            self.directive(directives)
        body = None
        if not self.accept(";"):
            body = self.body(scope)
        made = Function(name, entry, params, results, scope, body, directives, line)
        held = self.found.entries if entry else self.found.functions
        before = self.found.entries.get(name) or self.found.functions.get(name)
        if before is not None and before.body is not None:
            if body is not None:
                raise Malformed(
                    f"line {line}: expected a new name, found {name}, which is defined already"
                )
            return
        if entry and body is None:
            return
        held[name] = made

    def directive(self, directives: dict[str, tuple[int, ...]]) -> None:
        token = self.take()
        if token.text == ".pragma":
            self.at -= 1
            self.skipped()
            return
        if token.text not in PERFORMANCE:
            raise Malformed(
                f"line {token.line}: expected a directive of a function, found {token.text!r}"
            )
        values = []
        while self.next.kind == "number":
            values.append(self.number())
            self.accept(",")
        directives[token.text[1:]] = tuple(values)

    def formals(self, scope: Scope) -> tuple[Variable, ...]:
        self.expect("(")
        found: list[Variable] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
            found.append(self.formal(scope))
        return tuple(found)

    def formal(self, scope: Scope) -> Variable:
        line = self.next.line
        if self.accept(".reg"):
            kind, name = self.type(), self.kind("name", "a register")
            self.declare(scope, name, RegisterDeclared(name, kind, 1), line)
            return Variable(name, "reg", kind, max(width(kind) // 8, 1), 1, 1, (), line)
        self.expect(".param")
        align = self.align()
        kind = self.type()
        # .ptr .global .align 1: what a pointer may point to; a hint
        if self.accept(".ptr"):
            self.accept(".global", ".const", ".shared", ".local", ".param")
            self.align()
        align = align or self.align()
        return self.declared(scope, "param", kind, align, 1, external=False)

    def body(self, outer: Scope) -> tuple[Statement | Label, ...]:
        self.expect("{")
        found: list[Statement | Label] = []
        scope = Scope(outer)
        stack = [scope]
        while stack:
            token = self.next
            if token.text == "{" and token.kind == "sign":
                self.take()
                stack.append(Scope(stack[-1]))
                if len(stack) > DEEPEST:
                    raise Malformed(f"line {token.line}: expected at most {DEEPEST} nested braces")
            elif token.text == "}" and token.kind == "sign":
                self.take()
                stack.pop()
            elif token.kind == "dot":
                self.inner(stack[-1])
            elif self.accept(";"):
                pass
            elif token.kind == "name" and self.tokens[self.at + 1].text == ":":
                found.extend(self.label(stack[-1]))
            else:
                found.append(self.statement(stack[-1]))
        return tuple(found)

    def inner(self, scope: Scope) -> None:
        token = self.next
        if token.text == ".reg":
            self.registers(scope)
        elif token.text in SPACES:
            self.variables(scope)
        elif token.text in (".loc", ".file", ".pragma", ".section"):
            self.skipped()
        elif token.text in (".callprototype", ".calltargets", ".branchtargets"):
            raise self.wrong(f"a label before {token.text}")
        else:
            raise self.wrong("a directive of a function's body")

    def label(self, scope: Scope) -> list[Label]:
        line, name = self.next.line, self.take().text
        self.expect(":")
        which = self.accept(".branchtargets", ".calltargets", ".callprototype")
        if which in (".calltargets", ".callprototype"):
            raise Unsupported(f"line {line}: {which} (an indirect call)")
        if which:
            labels = self.names()
            self.expect(";")
            self.declare(scope, name, Targets(tuple(labels)), line)
            return []
        made = LabelDeclared(name, line)
        self.declare(scope, name, made, line)
        return [Label(made)]

    # statements

    def statement(self, scope: Scope) -> Statement:
        first = self.next
        guard, negated = None, False
        if self.accept("@"):
            negated = bool(self.accept("!"))
            guard = self.kind("name", "a predicate")
        opcode = self.kind("name", "an instruction")
        # a modifier may stand apart from what it modifies
        while self.next.kind == "dot":
            opcode += self.take().text
        operands: list[Operand] = []
        if self.next.text != ";":
            operands.append(self.operand())
            while self.accept(","):
                operands.append(self.operand())
        end = self.expect(";")
        text = " ".join(self.source[first.start : end.start].split())
        return Statement(opcode, tuple(operands), guard, negated, first.line, text, scope)

    def operand(self) -> Operand:
        made = self.single()
        if self.accept("|"):
            return Pair(made, self.single())
        return made

    def single(self) -> Operand:
        token = self.next
        if token.text in ("{", "("):
            # (1 + 2) is an expression, (a, b) the arguments of a call
            if token.text == "(" and self.tokens[self.at + 1].kind == "number":
                return Integer(self.number())
            return self.group({"{": "}", "(": ")"}[token.text])
        if token.text == "[":
            return self.address()
        if token.kind == "float":
            return self.floating(1)
        if token.text == "-" and self.tokens[self.at + 1].kind == "float":
            self.take()
            return self.floating(-1)
        if token.text == "!" and self.tokens[self.at + 1].kind == "name":
            self.take()
            return Not(Name(self.take().text))
        if token.kind == "name" and token.text != "WARP_SZ":
            self.take()
            if self.next.text in ("+", "-"):
                raise Unsupported(f"line {token.line}: an address expression outside brackets")
            return Name(token.text)
        return Integer(self.number())

    def group(self, close: str) -> Group:
        self.take()
        self.enter()
        items: list[Operand] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(self.operand())
        self.depth -= 1
        return Group(tuple(items))

    def address(self) -> Address:
        self.take()
        base = None
        if self.next.kind == "name":
            base = Name(self.take().text)
            offset = 0
            while self.next.text in ("+", "-"):
                offset += self.signed_offset()
        else:
            offset = self.number()
        if self.next.text == ",":
            raise Unsupported(
                f"line {self.next.line}: an address of several coordinates (texture, tensor)"
            )
        self.expect("]")
        return Address(base, offset)

    def floating(self, sign: int) -> Float:
        text = self.kind("float", "a floating-point number")
        prefix, digits = text[:2].lower(), text[2:]
        if prefix in ("0f", "0d"):
            bits = 32 if prefix == "0f" else 64
            return Float(int(digits, 16) ^ (sign < 0) << bits - 1, bits)
        return Float(struct.unpack("<Q", struct.pack("<d", sign * float(text)))[0], 64)
