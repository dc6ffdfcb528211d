"""What may be changed in the source of a function: one `Edit` for each place and kind.

Edits are made by position, so that nothing else of a text moves. Left alone are annotations, docstrings, texts and what
`raise` and `assert` say, with the conditions that only decide on a `raise`: no output rests on them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from contract.mutation.edit import Edit, Source

#: A float constant is changed by so much: a coefficient that was cut after two digits is wrong by that, and more than half
#: a unit in the last place of bf16 (2^-9).
SHARE = 1 / 128

_COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.Pow: ("**", "*"),
}  # fmt: skip
#: Operators whose operands cannot be exchanged.
_ORDERED = (
    ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.MatMult,
)  # fmt: skip
_FUNCTIONS = {
    "amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max",
    "argmax": "argmin", "argmin": "argmax", "sum": "mean", "mean": "sum", "floor": "ceil", "ceil": "floor", "round": "floor",
    "trunc": "round", "sin": "cos", "cos": "sin", "exp": "exp2", "exp2": "exp", "tanh": "sigmoid", "sigmoid": "tanh",
    "sqrt": "rsqrt", "rsqrt": "sqrt", "all": "any", "any": "all", "add": "sub", "sub": "add", "mul": "div", "div": "mul",
    "bitwise_left_shift": "bitwise_right_shift", "bitwise_right_shift": "bitwise_left_shift", "logical_and": "logical_or",
    "logical_or": "logical_and", "clamp_min": "clamp_max", "clamp_max": "clamp_min", "square": "abs",
}  # fmt: skip
_DTYPES = {
    "float64": "float32", "float32": "bfloat16", "bfloat16": "float16", "float16": "bfloat16", "int64": "int16",
    "int32": "int16", "int16": "int8", "int8": "uint8", "uint8": "int8", "float8_e4m3fn": "float8_e5m2",
}  # fmt: skip
#: Methods that give their own value in another format -> one that gives it in a smaller.
_CASTS = {
    "float": "bfloat16", "double": "float", "half": "bfloat16", "bfloat16": "half", "int": "short", "long": "short",
    "to": "", "type_as": "",
}  # fmt: skip
_RESULTS = {
    "bfloat16": "bfloat16", "half": "float16", "float": "float32", "short": "int16",
}  # fmt: skip
CAST = "cast dropped"
#: Methods whose result can stand where their own value does.
_SAME_SHAPE = frozenset({
    "abs", "neg", "clamp", "clamp_min", "clamp_max", "round", "floor", "ceil", "trunc", "sqrt", "rsqrt", "exp", "tanh",
    "sigmoid", "square", "clone", "flip", "masked_fill", "nan_to_num", "cumsum", "T", "mT",
})  # fmt: skip
#: Functions one of whose arguments is a dim.
_DIMMED = frozenset({
    "sum", "mean", "amax", "amin", "argmax", "argmin", "softmax", "cumsum", "unsqueeze", "squeeze", "transpose", "chunk",
    "split", "flatten", "repeat_interleave", "cat", "stack", "unbind", "narrow", "select", "gather", "index_select", "size",
    "roll", "flip", "sort", "topk", "diff", "prod", "max", "min", "movedim", "swapaxes",
})  # fmt: skip
#: Calls whose first two arguments mean the same.
_COMMUTE = frozenset({
    "add", "mul", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "eq", "ne",
    "isinstance", "transpose", "swapaxes", "max", "min", "broadcast_tensors", "print",
})  # fmt: skip


def edits(source: Source, function: ast.AST) -> Iterator[Edit]:
    """Every change of what a function (or an expression) computes."""
    assigned: set[str] = set()
    for node, parents in _code(function, ()):
        for rule in _RULES:
            yield from rule(source, node, parents)
        if isinstance(node, ast.stmt):
            yield from _dropped(source, node, assigned)


def _code(node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:  # fmt: skip
    """Nodes that compute, in the order of the text, with what they stand in."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "type_comment"):
            continue
        # defaults are those of the function that exists
        if name == "args" and isinstance(value, ast.arguments):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(
                child, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
            ):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.If) and _refuses(child):
                continue
            yield child, (*parents, node)
            yield from _code(child, (*parents, node))


def _refuses(node: ast.If) -> bool:
    """Whether an `if` does nothing but raise."""
    return not node.orelse and all(isinstance(one, ast.Raise) for one in node.body)


Rule = Callable[[Source, ast.AST, tuple[ast.AST, ...]], Iterator[Edit]]


def _edit(source: Source, kind: str, node: ast.expr | ast.stmt, text: str) -> Edit:
    return Edit(kind, node.lineno, source.start(node), source.end(node), text)


def _constants(source: Source, node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Edit]:
    if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes):
        return
    value = node.value
    above = parents[-1]
    negative = isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.USub)
    whole: ast.expr = above if negative and isinstance(above, ast.UnaryOp) else node
    if isinstance(value, bool):
        if isinstance(above, ast.keyword) and above.arg == "strict":
            # zip's own check
            return
        yield _edit(source, "flag", node, str(not value))
    elif isinstance(value, int):
        signed = -value if negative else value
        if _is_dim(whole, parents[:-1] if negative else parents):
            yield _edit(source, "dim", whole, str(signed + (1 if signed == 0 else -1)))
            return
        wide = source.data[source.start(node) : source.end(node)].lower().startswith(b"0x")
        shown = hex if wide else str
        yield _edit(source, "integer by one", whole, shown(signed + 1))
        yield _edit(source, "integer by one", whole, shown(signed - 1))
    elif isinstance(value, float):
        signed_float = -value if negative else value
        yield _edit(source, "float constant", whole, repr(signed_float * (1 + SHARE) or SHARE))
        if value:
            yield _edit(source, "sign of a constant", whole, repr(-signed_float))


def _is_dim(node: ast.expr, parents: tuple[ast.AST, ...]) -> bool:
    above = parents[-1]
    if isinstance(above, ast.keyword):
        return above.arg in ("dim", "dims", "axis")
    return isinstance(above, ast.Call) and node in above.args and name_of(above.func) in _DIMMED


def name_of(node: ast.AST) -> str:
    """The name, or the last part of it; '' of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _casts(source: Source, node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Edit]:
    if isinstance(node, ast.Attribute) and name_of(node.value) in ("torch", "np", "numpy"):
        if node.attr in _DTYPES:
            yield _renamed(source, "dtype", node, _DTYPES[node.attr])
        return
    if not isinstance(node, ast.Call) or not cast_of(node):
        return
    method = node.func
    assert isinstance(method, ast.Attribute)
    end = source.end(node)
    yield replace(_without(source, CAST, node, method), cast=end)
    if smaller := _CASTS[method.attr]:
        narrowed = _renamed(source, "cast narrowed", method, smaller)
        yield replace(narrowed, cast=end, dtype=_RESULTS[smaller])


def cast_of(node: ast.expr) -> str:
    """The method of a call that only gives its value another format; '' where it is none."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return ""
    method = node.func
    given = 1 if method.attr in ("to", "type_as") else 0
    fits = len(node.args) == given and not node.keywords and not _is_module(method.value)
    return method.attr if method.attr in _CASTS and fits else ""


def _is_module(node: ast.AST) -> bool:
    return name_of(node) in ("torch", "np", "numpy", "math", "F", "functional", "itertools")


def _renamed(source: Source, kind: str, node: ast.Attribute | ast.Name, name: str) -> Edit:
    """Another name, or another last part of it."""
    end = source.end(node)
    start = end - len(name_of(node).encode())
    return Edit(kind, source.line_of(start), start, end, name)


def _without(source: Source, kind: str, call: ast.expr, method: ast.Attribute) -> Edit:
    """The value of which a method is called, in the place of the call."""
    name = source.end(method) - len(method.attr.encode())
    start = source.data.rindex(b".", source.end(method.value), name)
    # a value that is alone on its line stays there
    start = len(source.data[:start].rstrip())
    return Edit(kind, source.line_of(name), start, source.end(call), "")


def _comparisons(source: Source, node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            edit = _between(source, "comparison", left, right, *_COMPARISONS[type(op)])
            if edit is not None:
                yield edit
            left = right
    elif isinstance(node, ast.BoolOp):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        edit = _between(source, "and, or", node.values[0], node.values[1], *words)
        if edit is not None and len(node.values) == 2:
            yield edit
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _edit(source, "not dropped", node, source.of(node.operand))
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(
        node.test, ast.Compare | ast.UnaryOp
    ):
        yield _edit(source, "condition negated", node.test, f"not {source.of(node.test)}")


def _between(
    source: Source, kind: str, left: ast.expr, right: ast.expr, before: str, after: str
) -> Edit | None:
    """Another operator between two operands."""
    first, last = source.end(left), source.start(right)
    gap = source.data[first:last]
    words = before.encode().split()
    place = gap.find(words[0])
    if place < 0 or b"#" in gap:
        return None
    end = gap.find(words[-1], place) + len(words[-1])
    start = first + place
    return Edit(kind, source.line_of(start), start, first + end, after)


def _arithmetic(source: Source, node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp):
        if type(node.op) in _OPERATORS:
            edit = _between(source, "operator", node.left, node.right, *_OPERATORS[type(node.op)])
            if edit is not None:
                yield edit
        if isinstance(node.op, _ORDERED):
            # with what stands between them, the parentheses left out
            gap = source.data[source.end(node.left) : source.start(node.right)].decode()
            sign = gap.strip("() \n\t")
            swapped = f"{source.of(node.right)} {sign} {source.of(node.left)}"
            if "#" not in gap and "\n" not in gap:
                yield _edit(source, "operands swapped", node, swapped)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        if not isinstance(node.operand, ast.Constant):
            yield _edit(source, "sign dropped", node, source.of(node.operand))
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        before, after = _OPERATORS[type(node.op)]
        edit = _between(source, "operator", node.target, node.value, f"{before}=", f"{after}=")
        if edit is not None:
            yield edit


def _calls(source: Source, node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Edit]:
    if not isinstance(node, ast.Call):
        return
    name = name_of(node.func)
    base = name.rstrip("_")
    if base in _FUNCTIONS and isinstance(node.func, ast.Attribute | ast.Name):
        own = isinstance(node.func, ast.Attribute)
        if own or base in ("max", "min", "any", "all"):
            other = _FUNCTIONS[base] + name[len(base) :]
            yield _renamed(source, "another function", node.func, other)
    if (
        isinstance(node.func, ast.Attribute)
        and not _is_module(node.func.value)
        and (name in _SAME_SHAPE or (name.endswith("_") and not name.startswith("_")))
    ):
        yield _without(source, "call dropped", node, node.func)
    arguments = node.args
    if any(isinstance(one, ast.Starred) for one in arguments):
        return
    if name == "where" and len(arguments) == 3:
        yield from _swapped(source, "arms of a selection", arguments[1], arguments[2])
    elif len(arguments) >= 2 and base not in _COMMUTE:
        yield from _swapped(source, "arguments swapped", arguments[0], arguments[1])


def _swapped(source: Source, kind: str, a: ast.expr, b: ast.expr) -> Iterator[Edit]:
    first, second = source.of(a), source.of(b)
    gap = source.data[source.end(a) : source.start(b)].decode()
    if gap.strip(" \n") == "," and first != second:
        text = second + gap + first
        yield Edit(kind, a.lineno, source.start(a), source.end(b), text)


def _offsets(source: Source, node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Edit]:
    """Ends of slices and of ranges that are no constants: those are integers, changed as such."""
    ends: list[tuple[ast.expr | None, int]] = []
    if isinstance(node, ast.Slice):
        ends = [(node.lower, 1), (node.upper, -1)]
    elif isinstance(node, ast.Call) and name_of(node.func) in ("range", "arange"):
        ends = [(one, -1 if place == min(1, len(node.args) - 1) else 1) for place, one in enumerate(node.args[:2])]  # fmt: skip
    for end, by in ends:
        if end is None or isinstance(end, ast.Constant | ast.Starred):
            continue
        if isinstance(end, ast.UnaryOp) and isinstance(end.operand, ast.Constant):
            continue
        yield _edit(source, "offset", end, f"{source.of(end)} {'+' if by > 0 else '-'} 1")


def _dropped(source: Source, node: ast.stmt, assigned: set[str]) -> Iterator[Edit]:
    """Statements left out where their names have a value without them."""
    names = {name_of(one) for one in _targets(node)}
    again = bool(names) and names <= assigned
    assigned |= names
    call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    into = isinstance(node, ast.Assign) and all(isinstance(t, ast.Subscript) for t in node.targets)
    if isinstance(node, ast.Assign) and cast_of(node.value):
        # without its cast, where it is one
        return
    if again or call or into or isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        yield _edit(source, "statement dropped", node, "pass")


def _targets(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.For):
        yield from node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]


_RULES: tuple[Rule, ...] = (_constants, _casts, _comparisons, _arithmetic, _calls, _offsets)

__all__ = ["cast_of", "edits", "name_of"]
