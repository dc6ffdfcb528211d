"""Python source as lint reads it: nothing is imported and nothing is run.

A name means what the function, else the module, assigns to it once; a name that is assigned twice means nothing that is
known. Parametrised tests are read once for each of their sets of values.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.errors import UsageError
from contract.lint.findings import short

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: Sets of parametrised values that are read of one test; beyond them its parameters are unknown.
MOST_SETS = 256
#: How many names and calls an expression is followed through.
DEEPEST = 12

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


@dataclass
class Module:
    """One parsed file.

    Attributes:
        file: its path, short.
        aliases: local name -> dotted name of what was imported.
        constants: name -> what the module assigns to it, once.
        functions: every function with its qualified name, in order.
        outer: names that the functions around a function bind, by the id of its node.
    """

    file: str
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    functions: list[tuple[str, Function]] = field(default_factory=list)
    outer: dict[int, frozenset[str]] = field(default_factory=dict)

    def dotted(self, node: ast.AST) -> str:
        """`numpy.testing.assert_allclose` of `np.testing.assert_allclose`; '' of what is no name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            inner = self.dotted(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return ""


def read(path: Path) -> Module:
    """A file as a module.

    Raises:
        UsageError: it cannot be read, or is no Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UsageError(f"{short(path)}:{line}: is no Python: {error}; repair it first") from error
    except (RecursionError, MemoryError) as error:
        # what the parser says of an expression that is nested too deep
        raise UsageError(f"{short(path)}: is nested too deep to be read; leave it out") from error
    except OSError as error:
        raise UsageError(f"{short(path)}: cannot be read: {error.strerror}") from error
    module = Module(short(path), tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                local = name.asname or name.name.partition(".")[0]
                module.aliases[local] = name.name if name.asname else local
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                module.aliases[name.asname or name.name] = f"{node.module or ''}.{name.name}"
    module.constants = _assigned(tree)
    module.functions = list(_functions(tree, ""))
    for _, function in module.functions:
        bound = _bound(function) | module.outer.get(id(function), frozenset())
        for inner in ast.walk(function):
            if isinstance(inner, Function) and inner is not function:
                # outer ones come first, so that the innermost around it is the last to say
                module.outer[id(inner)] = bound
    return module


def _bound(function: Function) -> frozenset[str]:
    """The names that a function binds: its arguments, and what it assigns to."""
    a = function.args
    arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    names = {name for node in within(function) for name in _names(node)}
    return frozenset({argument.arg for argument in arguments} | names)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _assigned(scope: ast.Module | Function) -> dict[str, ast.expr]:
    """Names that the scope binds exactly once, and by an assignment that can be followed."""
    found: dict[str, ast.expr] = {}
    spoilt: set[str] = set()

    def bind(name: str, value: ast.expr | None) -> None:
        if value is None or name in found:
            spoilt.add(name)
        else:
            found[name] = value

    for node in within(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    bind(target.id, node.value)
                elif isinstance(target, ast.Tuple):
                    _bind_each(target, node.value, bind)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            bind(node.target.id, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            spoilt.add(node.target.id)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for name in _names(node.target):
                spoilt.add(name)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            for name in _names(node.optional_vars):
                spoilt.add(name)
        elif isinstance(node, ast.NamedExpr):
            spoilt.add(node.target.id)
        # x[...] = y and x.fill_(y) make another tensor of it
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                while isinstance(target, ast.Subscript | ast.Attribute):
                    target = target.value
                    if isinstance(target, ast.Name):
                        spoilt.add(target.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, node.func.value
            if (
                method.endswith("_")
                and not method.startswith("_")
                and isinstance(owner, ast.Name)
                and method not in ("requires_grad_",)
            ):
                spoilt.add(owner.id)
    return {name: value for name, value in found.items() if name not in spoilt}


def _bind_each(
    target: ast.Tuple, value: ast.expr, bind: Callable[[str, ast.expr | None], None]
) -> None:
    """`a, b = 1, 2`, and `x, w = randn(8), randn(4)`; of anything else the names are unknown."""
    values: list[ast.expr | None] = [None] * len(target.elts)
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        values = list(value.elts)
    for one, its in zip(target.elts, values, strict=True):
        for name in _names(one):
            bind(name, its if isinstance(one, ast.Name) else None)


def _names(target: ast.AST) -> list[str]:
    return [
        n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions and classes inside it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


@dataclass(frozen=True)
class Scope:
    """What names mean inside one function, for one set of its parametrised values."""

    module: Module
    function: Function
    own: Mapping[str, ast.expr]
    given: Mapping[str, ast.expr]
    hidden: frozenset[str]

    def meaning(self, name: str) -> ast.expr | None:
        """What a name was made from; None where that is not known."""
        if name in self.given:
            return self.given[name]
        if name in self.own:
            return self.own[name]
        if name in self.hidden:
            return None
        return self.module.constants.get(name)

    def dotted(self, node: ast.AST) -> str:
        """The dotted name of an expression, a name followed to what it was assigned from."""
        for _ in range(DEEPEST):
            if not isinstance(node, ast.Name):
                break
            its = self.meaning(node.id)
            if its is None:
                break
            node = its
        return self.module.dotted(node)

    def number(self, node: ast.expr | None, depth: int = 0) -> float | None:
        """The value of a constant expression; None where it is not constant."""
        if node is None or depth > DEEPEST:
            return None
        if isinstance(node, ast.Constant):
            is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
            return float(node.value) if is_number else None  # type: ignore[arg-type]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = self.number(node.operand, depth + 1)
            return inner if inner is None or isinstance(node.op, ast.UAdd) else -inner
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            left, right = self.number(node.left, depth + 1), self.number(node.right, depth + 1)
            if left is None or right is None:
                return None
            try:
                return float(_BINARY[type(node.op)](left, right))
            except (ArithmeticError, TypeError, ValueError):
                return None
        if (chosen := self.chosen(node)) is not None:
            return self.number(chosen, depth + 1)
        return None

    def chosen(self, node: ast.expr) -> ast.expr | None:
        """What a name, a decided `a if dtype == b else c` or `TABLE[key]` stands for."""
        if isinstance(node, ast.Name):
            return self.meaning(node.id)
        if isinstance(node, ast.IfExp):
            truth = self._truth(node.test)
            return None if truth is None else (node.body if truth else node.orelse)
        if isinstance(node, ast.Subscript):
            table = node.value
            if isinstance(table, ast.Name):
                table = self.meaning(table.id) or table
            key = self.dotted(node.slice)
            if isinstance(table, ast.Dict) and key:
                for k, value in zip(table.keys, table.values, strict=True):
                    if k is not None and self.dotted(k) == key:
                        return value
        return None

    def _truth(self, test: ast.expr) -> bool | None:
        """Of `a == b`, `a is b`, `a in (b, c)` on dotted names; None of any other."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right = self.dotted(test.left), test.comparators[0]
        if isinstance(test.ops[0], ast.In | ast.NotIn) and isinstance(
            right, ast.Tuple | ast.List | ast.Set
        ):
            names = [self.dotted(one) for one in right.elts]
            known = left and all(names)
            return (left in names) == isinstance(test.ops[0], ast.In) if known else None
        other = self.dotted(right)
        # a parameter that is not known is a bare name
        if "." not in left or "." not in other:
            return None
        if isinstance(test.ops[0], ast.Eq | ast.Is):
            return left == other
        return left != other if isinstance(test.ops[0], ast.NotEq | ast.IsNot) else None

    def calls(self) -> list[ast.Call]:
        """Every call of the function, without those of functions inside it."""
        return [node for node in within(self.function) if isinstance(node, ast.Call)]


def scopes(module: Module, function: Function) -> list[Scope]:
    """One scope for each set of parametrised values (one alone where there are none)."""
    own = _assigned(function)
    hidden = _bound(function) | module.outer.get(id(function), frozenset())
    sets = _parameter_sets(module, function)
    return [Scope(module, function, own, given, hidden) for given in sets]


def _parameter_sets(module: Module, function: Function) -> list[dict[str, ast.expr]]:
    lists = []
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or len(decorator.args) < 2:
            continue
        if not module.dotted(decorator.func).endswith("mark.parametrize"):
            continue
        one = _sets_of(module, decorator.args[0], decorator.args[1])
        if one:
            lists.append(one)
    size = 1
    for one in lists:
        size *= len(one)
    if size > MOST_SETS:
        return [{}]
    return [
        {name: value for part in parts for name, value in part.items()}
        for parts in itertools.product(*lists)
    ]


def _sets_of(module: Module, names: ast.expr, values: ast.expr) -> list[dict[str, ast.expr]]:
    if isinstance(names, ast.Constant) and isinstance(names.value, str):
        keys = [name.strip() for name in names.value.split(",")]
    elif isinstance(names, ast.Tuple | ast.List):
        keys = [str(one.value) for one in names.elts if isinstance(one, ast.Constant)]
    else:
        return []
    if isinstance(values, ast.Name):
        values = module.constants.get(values.id, values)
    if not isinstance(values, ast.Tuple | ast.List):
        return []
    found = []
    for value in values.elts:
        if isinstance(value, ast.Call) and module.dotted(value.func) == "pytest.param":
            parts = list(value.args)
        elif len(keys) > 1 and isinstance(value, ast.Tuple | ast.List):
            parts = list(value.elts)
        else:
            parts = [value]
        if len(parts) != len(keys):
            return []
        found.append(dict(zip(keys, parts, strict=True)))
    return found
