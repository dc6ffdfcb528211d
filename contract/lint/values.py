"""What the source says of a tensor: its number format, and a bound of its magnitudes.

Rules of the format, in this order: what a cast or a factory of the expression names; torch's default, fp32, for a factory
of torch without dtype, and float64 for one of NumPy; a cast to a wider format keeps the values that are there; a call of
another function is taken to return the format of its first tensor, which is an assumption and is told as one.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from contract import formats
from contract.lint.reading import DEEPEST, Scope

#: Name of a dtype -> format; float64 is no format of this project.
DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "float64": "float64",
    "double": "float64",
    "float8_e4m3fn": "e4m3fn",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2": "e5m2",
}
#: Packages whose dtypes and factories these are; `numpy` makes float64 where it is not told.
LIBRARIES = ("torch", "numpy", "jax.numpy", "ml_dtypes", "mlx.core")
#: Methods that keep values, shape or both; a bound of magnitudes and a format go through them.
SAME_VALUES = (
    "clone", "contiguous", "cpu", "cuda", "detach", "numpy", "tolist", "item", "reshape", "view", "squeeze",
    "unsqueeze", "flatten", "ravel", "copy", "requires_grad_", "transpose", "permute", "mT", "T",
)  # fmt: skip
CASTS = {"bfloat16": "bf16", "half": "fp16", "float": "fp32", "double": "float64"}
#: Factories of tensors: the last part of their name.
FACTORIES = (
    "rand", "randn", "ones", "zeros", "full", "tensor", "as_tensor", "array", "asarray", "linspace", "arange", "eye", "normal",
    "uniform", "standard_normal", "random", "empty", "rand_like", "randn_like", "ones_like", "zeros_like", "full_like",
)  # fmt: skip
BOUNDED = ("tanh", "sin", "cos", "sigmoid", "softmax", "erf")
PRECISION64 = 53


@dataclass(frozen=True)
class Seen:
    """A format that the source names; `assumed`: what that rests on, '' where nothing."""

    name: str
    assumed: str = ""

    @property
    def precision(self) -> int:
        """Bits of a significand, the leading one counted."""
        return PRECISION64 if self.name == "float64" else formats.get(self.name).precision


def narrower(a: Seen | None, b: Seen | None) -> Seen | None:
    """The one of fewer bits, of two alike the one that is no assumption; the other where one is unknown."""
    if a is None or b is None:
        return a or b
    return min(a, b, key=lambda seen: (seen.precision, bool(seen.assumed)))


def dtype(scope: Scope, node: ast.expr | None) -> str:
    """The format that a dtype expression names; '' for none."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return DTYPES.get(node.value, "")
    chosen = scope.chosen(node) if not isinstance(node, ast.Name) else None
    name = scope.dotted(node if chosen is None else chosen)
    package, _, last = name.rpartition(".")
    return DTYPES.get(last, "") if package in LIBRARIES else ""


def library(name: str) -> str:
    """The library of LIBRARIES that a dotted name belongs to; '' for none."""
    for one in LIBRARIES:
        if name.startswith(f"{one}."):
            return one
    return ""


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """The value of the first keyword of these names."""
    for one in call.keywords:
        if one.arg in names:
            return one.value
    return None


def argument(call: ast.Call, place: int, *names: str) -> ast.expr | None:
    """A positional argument, or the keyword of one of these names."""
    positional = [a for a in call.args if not isinstance(a, ast.Starred)]
    if len(positional) == len(call.args) and place < len(positional):
        return positional[place]
    return keyword(call, *names)


def value_format(scope: Scope, node: ast.expr | None, depth: int = 0) -> Seen | None:
    """The narrowest format through which the values of an expression went last; None where nothing says it."""
    if node is None or depth > DEEPEST:
        return None
    deeper = depth + 1
    if isinstance(node, ast.Name | ast.IfExp):
        chosen = scope.chosen(node)
        return None if chosen is None else value_format(scope, chosen, deeper)
    if isinstance(node, ast.Subscript):
        return value_format(scope, node.value, deeper)
    if isinstance(node, ast.Attribute):
        return value_format(scope, node.value, deeper) if node.attr in SAME_VALUES else None
    if isinstance(node, ast.UnaryOp):
        return value_format(scope, node.operand, deeper)
    if isinstance(node, ast.BinOp):
        left, right = (value_format(scope, side, deeper) for side in (node.left, node.right))
        if _constant(node.left) or _constant(node.right):
            return left or right
        # both promote to the wider, and are rounded to it
        if left is None or right is None:
            return None
        return left if left.precision >= right.precision else right
    return _of_call(scope, node, deeper) if isinstance(node, ast.Call) else None


def _constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _of_call(scope: Scope, call: ast.Call, depth: int) -> Seen | None:
    name = scope.module.dotted(call.func)
    last = name.rpartition(".")[2] if name else getattr(call.func, "attr", "")
    where = library(name)
    if last in ("to", "astype", "type") and isinstance(call.func, ast.Attribute):
        said = next((d for a in call.args if (d := dtype(scope, a))), "") or dtype(
            scope, keyword(call, "dtype")
        )
        inner = value_format(scope, call.func.value, depth)
        return _cast(said, inner) if said else inner
    if last in CASTS and isinstance(call.func, ast.Attribute) and not where:
        return _cast(CASTS[last], value_format(scope, call.func.value, depth))
    if last in SAME_VALUES and isinstance(call.func, ast.Attribute) and not where:
        return value_format(scope, call.func.value, depth)
    if said := dtype(scope, keyword(call, "dtype")):
        return Seen(said)
    if where and last in FACTORIES:
        if last.endswith("_like"):
            return value_format(scope, argument(call, 0, "input"), depth)
        # of a tensor it keeps the format; of numbers it takes the library's own
        inner = value_format(scope, argument(call, 0), depth) if last in _WRAPPING else None
        default = "float64" if where == "numpy" else "fp32"
        return inner or (Seen(default) if _floats(call, last) else None)
    if where:
        return None
    return _assumed(scope, call, name or last, depth)


_WRAPPING = ("tensor", "as_tensor", "array", "asarray")


def _floats(call: ast.Call, last: str) -> bool:
    """Whether a factory makes floating-point numbers: `arange(8)` and `tensor([1, 2])` make integers."""
    if last not in (*_WRAPPING, "arange", "full"):
        return True
    return any(
        isinstance(n, ast.Constant) and isinstance(n.value, float)
        for a in call.args
        for n in ast.walk(a)
    )


def _cast(said: str, inner: Seen | None) -> Seen | None:
    """After a cast: a wider format holds the narrower values as they were, and says nothing of unknown ones."""
    new = Seen(said)
    if inner is not None:
        return narrower(inner, new)
    # from what? only a narrow format says that the values are its own
    return new if said in ("bf16", "fp16", "e4m3fn", "e4m3fnuz", "e5m2") else None


def _assumed(scope: Scope, call: ast.Call, name: str, depth: int) -> Seen | None:
    """The format of the first argument whose format is known."""
    for one in (*call.args, *(k.value for k in call.keywords)):
        seen = value_format(scope, one, depth)
        if seen is not None and seen.name != "float64":
            return Seen(seen.name, seen.assumed or f"{name} returns the {seen.name} it is given")
    return None


def magnitude(scope: Scope, node: ast.expr | None, depth: int = 0) -> float | None:
    """An upper bound of the magnitudes of an expression; None where the source gives none."""
    if node is None or depth > DEEPEST:
        return None
    deeper = depth + 1
    if (number := scope.number(node)) is not None:
        return abs(number)
    if isinstance(node, ast.Name | ast.IfExp):
        chosen = scope.chosen(node)
        return None if chosen is None else magnitude(scope, chosen, deeper)
    if isinstance(node, ast.List | ast.Tuple):
        return _largest([magnitude(scope, one, deeper) for one in node.elts])
    if isinstance(node, ast.UnaryOp):
        return magnitude(scope, node.operand, deeper)
    if isinstance(node, ast.Subscript):
        return magnitude(scope, node.value, deeper)
    if isinstance(node, ast.Attribute):
        return magnitude(scope, node.value, deeper) if node.attr in SAME_VALUES else None
    if isinstance(node, ast.BinOp):
        left, right = (magnitude(scope, side, deeper) for side in (node.left, node.right))
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Add | ast.Sub):
            return left + right
        if isinstance(node.op, ast.Mult):
            return left * right
        divisor = scope.number(node.right)
        return left / abs(divisor) if isinstance(node.op, ast.Div) and divisor else None
    return _magnitude_of_call(scope, node, deeper) if isinstance(node, ast.Call) else None


def _largest(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return max(known) if known and len(known) == len(parts) else None


def _magnitude_of_call(scope: Scope, call: ast.Call, depth: int) -> float | None:
    name = scope.module.dotted(call.func)
    last = name.rpartition(".")[2] if name else getattr(call.func, "attr", "")
    where, first = library(name), argument(call, 0)
    if isinstance(call.func, ast.Attribute) and not where:
        if last in (*SAME_VALUES, *CASTS, "to", "astype", "abs"):
            return magnitude(scope, call.func.value, depth)
        return 1.0 if last in BOUNDED else None
    if not where:
        return None
    if last in BOUNDED or last in ("ones", "ones_like", "rand", "rand_like", "random", "eye"):
        return 1.0
    if last in ("zeros", "zeros_like"):
        return 0.0
    if last in ("full", "full_like"):
        return magnitude(scope, argument(call, 1, "fill_value"), depth)
    if last in _WRAPPING:
        return magnitude(scope, first, depth)
    if last in ("linspace", "arange"):
        ends = [magnitude(scope, a, depth) for a in call.args[:2]]
        return _largest(ends)
    return None


def power_above(x: float) -> float:
    """The least power of two that is at least x."""
    return float(2.0 ** math.ceil(math.log2(x)))
