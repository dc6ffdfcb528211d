"""What a run tells of expressions, which the lines that ran do not: arms that were taken, and formats at casts.

The syntax tree of a function is changed so that each value that matters is noted on its way; it computes the same.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from contract.mutation.edit import Source
from contract.mutation.operators import cast_of, name_of

#: The function that notes, as the changed code calls it.
NOTED = "__noted__"
#: Functions whose tensors torch promotes to one dtype, as those of an operator.
_PROMOTING = frozenset({
    "add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "addcmul", "addcdiv", "where", "maximum", "minimum",
})  # fmt: skip
#: dtype -> dtypes that hold each of its values.
_HELD = {
    "bfloat16": {"float32", "float64"},
    "float16": {"float32", "float64"},
    "float32": {"float64"},
    "int8": {"int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "uint8": {"int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "int16": {"int32", "int64", "float32", "float64"},
    "int32": {"int64", "float64"},
    "bool": {"uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
}  # fmt: skip

Note = Callable[[str, int, Any], Any]


class Notes:
    """Of one file: the arms that ran, the keys that were looked up in a table written on the spot, and of each cast the
    dtypes of its value, its result and what stands beside it.

    Places are bytes of the text: of an arm and a look-up the start, of a cast the end of its call.
    """

    def __init__(self) -> None:
        self.arms: set[int] = set()
        self.keys: dict[int, set[str]] = {}
        self.casts: dict[int, dict[str, set[str]]] = {}

    def __call__(self, kind: str, place: int, value: Any) -> Any:
        if kind == "arm":
            self.arms.add(place)
        elif kind == "key":
            self.keys.setdefault(place, set()).add(str(value))
        else:
            known = self.casts.setdefault(place, {"value": set(), "result": set(), "beside": set()})
            known[kind].add(_format(value))
        return value

    def as_json(self) -> dict[str, Any]:
        casts = {str(p): {k: sorted(v) for k, v in c.items()} for p, c in self.casts.items()}
        keys = {str(place): sorted(found) for place, found in self.keys.items()}
        return {"arms": sorted(self.arms), "keys": keys, "casts": casts}


def _format(value: Any) -> str:
    """The dtype of a tensor of one dim and more; '' of what does not decide a promotion."""
    dtype, dims = getattr(value, "dtype", None), getattr(value, "ndim", 0)
    return str(dtype).removeprefix("torch.") if dtype is not None and dims else ""


def noting(text: str) -> ast.Module:
    """The tree of a text, with its values noted by the function `NOTED`; for compilation."""
    source = Source(text)
    # in place
    _Noting(source).visit(source.tree)
    return ast.fix_missing_locations(source.tree)


def entries(node: ast.AST) -> dict[str, ast.expr]:
    """The values of `{"a": ..., "b": ...}[key]` by their keys; {} of anything else."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict)):
        return {}
    pairs = list(zip(node.value.keys, node.value.values, strict=True))
    found = {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}
    return found if len(found) == len(pairs) else {}


class _Noting(ast.NodeTransformer):
    def __init__(self, source: Source) -> None:
        self.source = source

    def _noted(self, kind: str, place: int, node: ast.expr) -> ast.expr:
        call = ast.Call(
            ast.Name(NOTED, ast.Load()), [ast.Constant(kind), ast.Constant(place), node], []
        )
        return ast.copy_location(call, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        places = self.source.start(node.body), self.source.start(node.orelse)
        self.generic_visit(node)
        node.body = self._noted("arm", places[0], node.body)
        node.orelse = self._noted("arm", places[1], node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        places = [self.source.start(one) for one in node.values]
        self.generic_visit(node)
        node.values[1:] = [
            self._noted("arm", place, one)
            for place, one in zip(places[1:], node.values[1:], strict=True)
        ]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        place = self.source.start(node)
        chosen = entries(node)
        self.generic_visit(node)
        if chosen and isinstance(node.slice, ast.expr):
            node.slice = self._noted("key", place, node.slice)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self._casts(node.left), self._casts(node.right)
        self.generic_visit(node)
        for cast in left:
            node.right = self._noted("beside", cast, node.right)
        for cast in right:
            node.left = self._noted("beside", cast, node.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        own = self._casts(node)
        inside = [self._casts(one) for one in node.args]
        self.generic_visit(node)
        function = node.func
        if own and isinstance(function, ast.Attribute):
            function.value = self._noted("value", own[0], function.value)
            return self._noted("result", own[0], node)
        if name_of(function) in _PROMOTING and not any(
            isinstance(one, ast.Starred) for one in node.args
        ):
            for place, cast in (
                (place, cast) for place, casts in enumerate(inside) for cast in casts
            ):
                if isinstance(function, ast.Attribute) and name_of(function.value) != "torch":
                    function.value = self._noted("beside", cast, function.value)
                for other in range(len(node.args)):
                    if other != place:
                        node.args[other] = self._noted("beside", cast, node.args[other])
        return node

    def _casts(self, node: ast.expr) -> list[int]:
        """The casts whose result an operand may be."""
        if isinstance(node, ast.IfExp):
            return [*self._casts(node.body), *self._casts(node.orelse)]
        return [self.source.end(node)] if cast_of(node) else []


def same_numbers(notes: Mapping[str, list[str]] | None, other: str | None) -> str:
    """Why a cast to another dtype gives the same numbers, whatever the values are; '' where that is not known.

    Args:
        notes: what `Notes` knows of the cast.
        other: the dtype that takes the place of its result; None: that of its value.
    """
    if notes is None or len(notes["value"]) != 1 or len(notes["result"]) != 1:
        return ""
    value, result = notes["value"][0], notes["result"][0]
    new = value if other is None else other
    if not value or not result:
        return ""
    if new == result:
        return f"the value is {value}"
    if not (holds(value, new) and holds(value, result)):
        return ""
    beside = [one for one in notes["beside"] if one]
    if not beside or any(_promoted(new, one) != _promoted(result, one) for one in beside):
        return ""
    return f"the value is {value}, which torch promotes beside {', '.join(beside)}"


def holds(dtype: str, other: str) -> bool:
    """Whether each value of a dtype is one of the other."""
    return dtype == other or other in _HELD.get(dtype, ())


def _promoted(a: str, b: str) -> str:
    import torch

    return str(torch.promote_types(getattr(torch, a), getattr(torch, b)))
