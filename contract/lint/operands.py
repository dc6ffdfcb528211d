"""Inputs of a test suite whose symmetry hides a convention.

A function under test is one that test files import and call in a test that compares numbers. Its operand is symmetric
where *every* call, in all files that are read, builds it so: one value everywhere, equal rows, the identity, a literal
that is equal to its transpose or reads the same from both ends, or the very tensor that another operand is. Then a kernel
that mixes up rows, columns, halves, signs of a rotation or two operands gives the same outputs. An operand whose making
the source does not show counts as general: no finding rests on a guess.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from contract.lint.findings import Finding
from contract.lint.reading import DEEPEST, Function, Module, Scope, scopes
from contract.lint.tolerances import is_comparison
from contract.lint.values import FACTORIES, SAME_VALUES, argument, library

#: Packages that are tools of a test, and not under test.
TOOLS = ("torch", "numpy", "jax", "mlx", "scipy", "math", "pytest", "hypothesis", "contract", "copy", "itertools", "functools", "pathlib", "os", "sys")  # fmt: skip
CONSTANT = ("ones", "zeros", "full", "ones_like", "zeros_like", "full_like")
REPEATS = ("expand", "repeat", "tile")
WHY = {
    "one value everywhere": (
        "any order of its elements gives the same outputs",
        "draw it, with full significands and both signs",
    ),
    "equal rows": (
        "rows mixed up, or one row read for all, give the same outputs",
        "draw every row",
    ),
    "the identity": (
        "its transpose and its inverse are the same",
        "draw it: no symmetry, no zeros",
    ),
    "equal to its transpose": (
        "the two axes can change places",
        "use a matrix without that symmetry",
    ),
    "the same from both ends": ("its order can be reversed", "use values without that symmetry"),
}


@dataclass
class _Calls:
    """All calls of one function under test."""

    operands: dict[int | str, list[str]] = field(default_factory=lambda: defaultdict(list))
    pairs: dict[tuple[int | str, int | str], int] = field(default_factory=lambda: defaultdict(int))
    count: int = 0
    place: tuple[str, int] = ("", 0)
    opaque: bool = False


def findings(modules: Sequence[Module]) -> tuple[list[Finding], int]:
    """The findings of all files together, and how many calls of functions under test they have."""
    calls: dict[str, _Calls] = defaultdict(_Calls)
    for module in modules:
        _note_references(module, calls)
        for _, function in module.functions:
            for scope in scopes(module, function):
                _note(scope, function, calls)
    tested = {name: seen for name, seen in calls.items() if seen.place[0]}
    found = [one for name, seen in sorted(tested.items()) for one in _of_one(name, seen)]
    return found, sum(seen.count for seen in tested.values())


def _under_test(module: Module, node: ast.expr) -> str:
    """The dotted name of an imported function that is no tool; '' otherwise."""
    name = module.dotted(node)
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    imported = isinstance(root, ast.Name) and root.id in module.aliases
    top = name.partition(".")[0]
    own = name.startswith(("contract.kernels.", "contract.controls."))
    return name if imported and "." in name and (own or top not in TOOLS) else ""


def _note_references(module: Module, calls: dict[str, _Calls]) -> None:
    """A function that is passed on, not called, has calls that are not seen."""
    called = {id(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    inner = {id(n.value) for n in ast.walk(module.tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Name | ast.Attribute)
            and id(node) not in called
            and id(node) not in inner
            and (name := _under_test(module, node))
        ):
            calls[name].opaque = True


def _note(scope: Scope, function: Function, calls: dict[str, _Calls]) -> None:
    compares = function.name.startswith("test") and any(
        is_comparison(scope, call) for call in scope.calls()
    )
    outputs = {
        name
        for call in scope.calls()
        if is_comparison(scope, call)
        for side in call.args
        if (name := _bare(side))
    }
    for call in scope.calls():
        name = _under_test(scope.module, call.func)
        if not name:
            continue
        seen = calls[name]
        seen.count += 1
        if compares and not seen.place[0]:
            seen.place = (scope.module.file, call.lineno)
        operands: dict[int | str, ast.expr] = dict(enumerate(call.args))
        operands |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        starred = any(isinstance(a, ast.Starred) for a in call.args)
        seen.opaque |= starred or any(k.arg is None for k in call.keywords)
        made: dict[int | str, str] = {}
        for key, node in operands.items():
            # a buffer that the call writes
            written = isinstance(node, ast.Name) and node.id in outputs
            seen.operands[key].append("" if written else symmetry(scope, node))
            if (text := _tensor(scope, node)) and not written:
                made[key] = text
        keys = list(made)
        for i, a in enumerate(keys):
            for b in keys[i + 1 :]:
                if made[a] == made[b]:
                    seen.pairs[a, b] += 1


def _bare(node: ast.expr) -> str:
    """The variable that is compared as it is, or through methods that keep its values; '' for a computed side."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _of_one(name: str, seen: _Calls) -> Iterator[Finding]:
    if seen.opaque:
        return
    file, line = seen.place
    times = f"in all {seen.count} calls" if seen.count > 1 else "in its only call"
    for key, kinds in sorted(seen.operands.items(), key=lambda item: str(item[0])):
        kind = kinds[0]
        if len(kinds) == seen.count and kind and all(one == kind for one in kinds):
            hides, repair = WHY[kind]
            yield Finding(
                file,
                line,
                "symmetric-input",
                f"{_operand(key)} of {name} is {kind} {times}: {hides}",
                repair,
            )
    for (a, b), count in sorted(seen.pairs.items(), key=str):
        if count == seen.count:
            yield Finding(
                file,
                line,
                "symmetric-input",
                f"{_operand(a)} and {_operand(b)} of {name} are the same tensor {times}: the two can change places",
                "draw each of them",
            )


def _operand(key: int | str) -> str:
    return f"operand {key!r}" if isinstance(key, str) else f"operand {key + 1}"


def _tensor(scope: Scope, node: ast.expr) -> str:
    """A text that two operands share where they are one tensor, or made alike without chance; '' for what is none."""
    text, depth = "", 0
    while depth < DEEPEST:
        depth += 1
        if isinstance(node, ast.Name):
            its = scope.meaning(node.id)
            if its is None:
                return ""
            text, node = text or node.id, its
        elif isinstance(node, ast.Call):
            name = scope.module.dotted(node.func)
            if library(name) or name.rpartition(".")[2] in FACTORIES:
                drawn = any(word in name for word in ("rand", "normal", "uniform", "empty"))
                # two of them are two draws; one variable is one tensor
                return text if drawn else ast.dump(node)
            if not isinstance(node.func, ast.Attribute):
                return ""
            node = node.func.value
        else:
            return ""
    return ""


def symmetry(scope: Scope, node: ast.expr, depth: int = 0) -> str:
    """The symmetry of an operand as the source makes it, a key of WHY; '' for none that is seen."""
    if depth > DEEPEST:
        return ""
    if isinstance(node, ast.Name | ast.IfExp):
        chosen = scope.chosen(node)
        return "" if chosen is None else symmetry(scope, chosen, depth + 1)
    if isinstance(node, ast.BinOp):
        # scaled by a number, or moved by one, it stays as symmetric
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if scope.number(other) is not None:
                kind = symmetry(scope, one, depth + 1)
                return kind if kind != "the identity" else "equal to its transpose"
        return ""
    if not isinstance(node, ast.Call):
        return ""
    name = scope.module.dotted(node.func)
    last = name.rpartition(".")[2] if name else getattr(node.func, "attr", "")
    if library(name):
        return _of_factory(scope, node, last)
    if not isinstance(node.func, ast.Attribute):
        return ""
    if last in REPEATS:
        inner = symmetry(scope, node.func.value, depth + 1)
        return inner if inner == "one value everywhere" else _repeated(scope, node)
    if last in (*SAME_VALUES, "to", "astype", "bfloat16", "half", "float", "double"):
        return symmetry(scope, node.func.value, depth + 1)
    return ""


def _of_factory(scope: Scope, call: ast.Call, last: str) -> str:
    if last in CONSTANT:
        size = argument(call, 0, "size", "shape")
        # one number alone has no order
        return "" if _is_scalar(size) else "one value everywhere"
    if last == "eye":
        return "the identity"
    if last in ("tensor", "array", "asarray", "as_tensor"):
        return _of_literal(scope, argument(call, 0))
    return ""


def _is_scalar(size: ast.expr | None) -> bool:
    return size is None or (
        (isinstance(size, ast.Tuple | ast.List) and not size.elts)
        or (isinstance(size, ast.Constant) and size.value == 1)
    )


def _repeated(scope: Scope, call: ast.Call) -> str:
    """`x.expand(8, -1)`, and `x.repeat(8, 1)` of one row, have equal rows; a repeat along the last axis has not."""
    assert isinstance(call.func, ast.Attribute)
    sizes = [scope.number(a) for a in call.args]
    if call.func.attr == "expand":
        is_rows = len(sizes) > 1 and sizes[0] != -1.0 and set(sizes[1:]) == {-1.0}
    else:
        is_rows = len(sizes) > 1 and set(sizes[1:]) == {1.0} and _is_row(scope, call.func.value)
    return "equal rows" if is_rows else ""


def _is_row(scope: Scope, node: ast.expr) -> bool:
    """Whether a factory makes it with one dim, or with a first one of size 1."""
    chosen = scope.chosen(node) or node
    if not isinstance(chosen, ast.Call) or not library(scope.module.dotted(chosen.func)):
        return False
    sizes: list[ast.expr] = list(chosen.args)
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = list(sizes[0].elts)
    return len(sizes) == 1 or (len(sizes) > 1 and scope.number(sizes[0]) == 1)


def _of_literal(scope: Scope, node: ast.expr | None) -> str:
    values = _literal(scope, node)
    if not isinstance(values, list) or len(values) < 2:
        return ""
    rows = [row for row in values if isinstance(row, list)]
    flat = [x for row in rows for x in row] if rows else values
    if any(isinstance(x, list) or x is None for x in flat):
        return ""
    if len(set(flat)) == 1:
        return "one value everywhere"
    if len(rows) == len(values):
        if all(row == rows[0] for row in rows):
            return "equal rows"
        square = all(len(row) == len(rows) for row in rows)
        if square and [list(column) for column in zip(*rows, strict=True)] == rows:
            return "equal to its transpose"
        return ""
    return "the same from both ends" if values == values[::-1] else ""


def _literal(scope: Scope, node: ast.expr | None) -> object:
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(scope, one) for one in node.elts]
    return scope.number(node)
