"""Tolerances of a test suite: those below half an ulp, and those that an output of zeros passes.

A result that is rounded once, correctly, to a format of p bits lies up to half an ulp from the exact one: up to 2^-p of
its magnitude just above a power of two, where half an ulp is 2^-p times that power. A comparison that allows
`atol + rtol |v|` refuses such results where that is less. It has no threshold of its own: what it accepts beside equal
bits is chance, and the dropped rounding that it was meant to see passes or fails with the input.

An output of zeros differs from v by |v|, which `atol + rtol |v|` allows at every element where atol >= (1 - rtol) max |v|.

Defaults: torch.testing.assert_close (torch's documentation, by dtype), torch.allclose and numpy.allclose (1e-5, 1e-8),
numpy.testing.assert_allclose (1e-7, 0), pytest.approx (the larger of 1e-6 |v| and 1e-12; abs alone leaves rel out).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from contract.lint.findings import Finding
from contract.lint.reading import Function, Module, Scope, scopes
from contract.lint.values import (
    Seen,
    argument,
    keyword,
    magnitude,
    narrower,
    power_above,
    value_format,
)

#: What a contract's outputs reach on its own rows: name -> largest magnitude, None where it is not there.
Reach = Callable[[str], float | None]

CLOSE_DEFAULTS = {
    "bf16": (1.6e-2, 1e-5),
    "fp16": (1e-3, 1e-5),
    "fp32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}
#: Function -> (rtol, atol) where it is not told; None: by dtype.
FUNCTIONS: dict[str, tuple[float, float] | None] = {
    "torch.testing.assert_close": None,
    "torch.allclose": (1e-5, 1e-8),
    "torch.isclose": (1e-5, 1e-8),
    "numpy.allclose": (1e-5, 1e-8),
    "numpy.isclose": (1e-5, 1e-8),
    "numpy.testing.assert_allclose": (1e-7, 0.0),
    "jax.numpy.allclose": (1e-5, 1e-8),
}
APPROX = "pytest.approx"
#: Comparisons of bits, and those by a contract: no tolerance, but a comparison of numbers.
EXACT = (
    "torch.equal", "numpy.array_equal", "numpy.testing.assert_array_equal", "numpy.testing.assert_equal",
    "contract.assert_allowed", "contract.allowed", "torch.testing.assert_equal",
)  # fmt: skip
#: A magnitude up to which a tolerance must serve where nothing says how large the outputs are.
ORDER_ONE = 1.0
#: Any output that is not all small has values above it: a condition that need not be told.
SMALL = 2.0**-6


@dataclass(frozen=True)
class Comparison:
    """One comparison with a tolerance.

    Attributes:
        call: where it stands; name: the function's, dotted.
        got, want: what is compared; want is None where only one side is written in the call.
        rtol, atol: as it is called, or the function's own.
        larger: whether the larger of both counts (pytest.approx), and not their sum.
    """

    call: ast.Call
    name: str
    got: ast.expr | None
    want: ast.expr | None
    rtol: float
    atol: float
    larger: bool = False

    def admits(self, v: float) -> float:
        """The distance that it allows from a value of magnitude v."""
        relative = self.rtol * v
        return max(relative, self.atol) if self.larger else self.atol + relative


def is_comparison(scope: Scope, call: ast.Call) -> bool:
    """Whether a call compares numbers, with a tolerance or without."""
    name = scope.module.dotted(call.func)
    return name in FUNCTIONS or name == APPROX or name in EXACT or _is_method(scope, call)


def _is_method(scope: Scope, call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "allclose"
        and scope.module.dotted(call.func) not in FUNCTIONS
        and bool(call.args)
    )


def comparison(scope: Scope, call: ast.Call) -> Comparison | None:
    """The comparison that a call makes; None for another call, or a tolerance that the source does not give."""
    name = scope.module.dotted(call.func)
    if name == APPROX:
        return _approx(scope, call, _compared_with(scope, call))
    method = _is_method(scope, call)
    if name not in FUNCTIONS and not method:
        return None
    if method:
        assert isinstance(call.func, ast.Attribute)
        got: ast.expr | None = call.func.value
        want, places = argument(call, 0, "other"), (1, 2)
        name = "torch.allclose"
    else:
        got, want, places = argument(call, 0), argument(call, 1), (2, 3)
    # assert_close takes its tolerances by keyword alone
    given = [
        keyword(call, word) if FUNCTIONS[name] is None else argument(call, place, word)
        for place, word in zip(places, ("rtol", "atol"), strict=True)
    ]
    numbers = [scope.number(one) for one in given]
    if any(g is not None and n is None for g, n in zip(given, numbers, strict=True)):
        return None
    defaults = FUNCTIONS[name]
    if defaults is None:
        seen = narrower(value_format(scope, got), value_format(scope, want))
        own = CLOSE_DEFAULTS.get("" if seen is None else seen.name)
        if own is None and None in numbers:
            return None
        defaults = own or (0.0, 0.0)
    rtol, atol = (d if n is None else n for n, d in zip(numbers, defaults, strict=True))
    return Comparison(call, name, got, want, rtol, atol)


def _approx(scope: Scope, call: ast.Call, got: ast.expr | None) -> Comparison | None:
    relative, absolute = argument(call, 1, "rel"), argument(call, 2, "abs")
    rtol, atol = scope.number(relative), scope.number(absolute)
    if (relative is not None and rtol is None) or (absolute is not None and atol is None):
        return None
    if rtol is None:
        rtol = 0.0 if atol is not None else 1e-6
    return Comparison(
        call, APPROX, got, argument(call, 0), rtol, 1e-12 if atol is None else atol, larger=True
    )


def _compared_with(scope: Scope, call: ast.Call) -> ast.expr | None:
    """The other side of `x == approx(...)`."""
    for node in ast.walk(scope.function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if node.comparators[0] is call:
                return node.left
            if node.left is call:
                return node.comparators[0]
    return None


def findings(module: Module, reach: Reach) -> tuple[list[Finding], int]:
    """The findings of a file, and how many comparisons with a tolerance it has."""
    found: dict[tuple[int, str, str], Finding] = {}
    count = 0
    for _, function in module.functions:
        lines = set()
        for scope in scopes(module, function):
            for call in scope.calls():
                one = comparison(scope, call)
                if one is None:
                    continue
                lines.add((call.lineno, call.col_offset))
                for finding in _of_one(scope, one, _contract_of(module, function), reach):
                    found.setdefault((finding.line, finding.rule, finding.reason), finding)
        count += len(lines)
    return list(found.values()), count


def _contract_of(module: Module, function: Function) -> str:
    """The contract that a function names in a call of `contract.allowed("NAME", ...)` and the like; '' for none."""
    names = {"allowed", "assert_allowed", "verified", "contract_check"}
    said = {
        str(node.args[0].value)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and module.dotted(node.func).removeprefix("contract.") in names
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    return said.pop() if len(said) == 1 else ""


def _of_one(scope: Scope, one: Comparison, kernel: str, reach: Reach) -> Iterator[Finding]:
    largest, source = magnitude(scope, one.want), "expected here"
    condition = ""
    if largest is None and kernel and (largest := reach(kernel)) is not None:
        source = f"of {kernel} on its typical rows"
        condition = f"what is compared is the output of {kernel}"
    if largest and (one.rtol >= 1 or one.admits(largest) > largest * (1 + 2.0**-8)):
        yield _finding(
            scope,
            one,
            "tolerance-admits-zeros",
            f"{_said(one)} admits {one.admits(largest):.3g} at the largest magnitude {source}, {largest:.3g}: an output of"
            " zeros passes",
            f"state atol below {largest:.3g} by what the kernel may round, or compare bits",
            condition,
        )
        return
    if largest is None and one.rtol >= 1 and not one.larger:
        yield _finding(
            scope,
            one,
            "tolerance-admits-zeros",
            f"{_said(one)}: a relative tolerance of 1 and more admits zero for every value",
            "state rtol as a number of ulps of the output's format",
        )
        return
    seen = narrower(value_format(scope, one.got), value_format(scope, one.want))
    if seen is not None:
        yield from _below(scope, one, seen, largest)


def _below(scope: Scope, one: Comparison, seen: Seen, largest: float | None) -> Iterator[Finding]:
    half = 2.0**-seen.precision
    # zero tolerances ask for equality, and say so
    if one.rtol >= half or one.admits(1.0) == 0:
        return
    start = power_above(one.atol / (half - (0.0 if one.larger else one.rtol))) if one.atol else 0.0
    if start > (ORDER_ONE if largest is None else largest):
        return
    conditions = [seen.assumed] if seen.assumed else []
    if start > SMALL and largest is None:
        conditions.append(f"outputs reach {start:.3g}")
    yield _finding(
        scope,
        one,
        "tolerance-below-half-ulp",
        f"{_said(one)} is below half an ulp of {seen.name} ({half:.3g} of the value)"
        + (f" from {start:.3g} on" if start else "")
        + ": a correctly rounded result is refused",
        f"use rtol >= {half:.3g}, torch.equal where bits must agree, or contract.assert_allowed",
        " and ".join(conditions),
    )


def _said(one: Comparison) -> str:
    words = ("rel", "abs") if one.larger else ("rtol", "atol")
    return f"{one.name} with {words[0]}={one.rtol:g}, {words[1]}={one.atol:g}"


def _finding(
    scope: Scope, one: Comparison, rule: str, reason: str, repair: str, condition: str = ""
) -> Finding:
    return Finding(scope.module.file, one.call.lineno, rule, reason, repair, condition)
