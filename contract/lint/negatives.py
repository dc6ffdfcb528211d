"""Tests that a comparison fails, and that would pass for another reason too.

A planted fault is seen where its *values* are refused. `pytest.raises(AssertionError)` around a comparison is also met by
another shape or dtype, and `pytest.raises(Exception)` by a misspelt name; so is an `xfail` that names no exception.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from contract.lint.findings import Finding
from contract.lint.reading import Function, Module, Scope, scopes
from contract.lint.tolerances import is_comparison

BROAD = ("Exception", "BaseException")
#: What assert_close and assert_allclose raise for values, and for shapes and dtypes alike.
UNCLEAR = ("AssertionError", *BROAD)


def findings(module: Module) -> tuple[list[Finding], int]:
    """The findings of a file, and how many refusals it expects."""
    found: list[Finding] = []
    count = 0
    for _, function in module.functions:
        scope = scopes(module, function)[0]
        for node in ast.walk(function):
            if isinstance(node, ast.With | ast.AsyncWith):
                for call in _raises(scope, node):
                    if any(
                        isinstance(inner, ast.Call) and is_comparison(scope, inner)
                        for statement in node.body
                        for inner in ast.walk(statement)
                    ):
                        count += 1
                        found += _of_raises(scope, call)
        found += _of_xfail(scope, function)
    return found, count


def _raises(scope: Scope, node: ast.With | ast.AsyncWith) -> Iterator[ast.Call]:
    for item in node.items:
        call = item.context_expr
        # what is caught by name can be looked at afterwards
        by_name = item.optional_vars is not None
        if (
            isinstance(call, ast.Call)
            and scope.module.dotted(call.func) == "pytest.raises"
            and not by_name
        ):
            yield call


def _of_raises(scope: Scope, call: ast.Call) -> Iterator[Finding]:
    if not call.args or any(k.arg == "match" for k in call.keywords):
        return
    kinds = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else [call.args[0]]
    for kind in kinds:
        name = scope.module.dotted(kind)
        if name in UNCLEAR:
            other = "any mistake" if name in BROAD else "another shape or dtype"
            yield Finding(
                scope.module.file,
                call.lineno,
                "red-for-another-reason",
                f"pytest.raises({name}) around a comparison is met by {other}, not by the planted values alone",
                "give match= with words of the refused values, such as 'Mismatched elements', or contract.NotAllowed",
            )
            return


def _of_xfail(scope: Scope, function: Function) -> Iterator[Finding]:
    if not any(is_comparison(scope, call) for call in scope.calls()):
        return
    for decorator in function.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not scope.module.dotted(call).endswith("mark.xfail"):
            continue
        words = {k.arg for k in decorator.keywords} if isinstance(decorator, ast.Call) else set()
        if "raises" not in words:
            yield Finding(
                scope.module.file,
                decorator.lineno,
                "red-for-another-reason",
                f"xfail of {function.name}, which compares numbers, is met by any error",
                "give raises=AssertionError and strict=True, or plant a red control (contract.red) with its gate",
            )
