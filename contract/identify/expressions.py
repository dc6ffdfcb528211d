"""What a black box is given for an argument, written as a small expression over one call's names.

    x   (d,)   [d]   1e-6   None   tanh   torch.bfloat16

A name is an operand, a scalar, an enumerated parameter or a dim of the call; any other word is a string.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from contract.errors import UsageError
from contract.lazy import lazy

torch = lazy("torch")


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Raises:
        UsageError: an expression of another form.
    """
    return _value(_parsed(text), names, text)


def rewritten(text: str, shown: Callable[[str], str]) -> str:
    """The expression as Python source, each name replaced by what `shown` makes of it."""
    tree = _parsed(text)
    if isinstance(tree, str):
        return repr(tree)

    class Names(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            return node

        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.parse(shown(node.id), mode="eval").body

    return ast.unparse(Names().visit(tree))


def _parsed(text: str) -> Any:
    """The expression's tree; a string where it is none, such as `1+w` or `two words`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return text
    known = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.UnaryOp, ast.Attribute)
    return tree if isinstance(tree, known) else text


def _value(node: Any, names: Mapping[str, Any], text: str) -> Any:
    if isinstance(node, str):
        return node
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Tuple):
        return tuple(_value(part, names, text) for part in node.elts)
    if isinstance(node, ast.List):
        return [_value(part, names, text) for part in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names, text)
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch":
        dtype = getattr(torch, node.attr, None)
        if isinstance(dtype, torch.dtype):
            return dtype
    raise UsageError(
        f"argument {text!r}: give a number, a word, an operand, a dim, a torch dtype, or a tuple of them"
    )
