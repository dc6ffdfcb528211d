"""Where declarations stand: FILE and LINE of contracts, implementations and controls."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

from contract import registry
from contract.declare import Contract
from contract.lint.findings import short


def place_of(place: str) -> tuple[str, int] | None:
    """`FILE:LINE` as the registry keeps it, with a short file; None of ''."""
    file, _, line = place.rpartition(":")
    return (short(file), int(line)) if file and line.isdecimal() else None


def contract_file(contract: Contract) -> str:
    """The file in which a contract was registered; '' where its module has none."""
    module = sys.modules.get(registry.origin(contract.name) or contract.reference.__module__)
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else ""


def contract_place(contract: Contract) -> tuple[str, int]:
    """File and line of the `Contract(...)` of that name; line 1 where it is made in a loop."""
    file = contract_file(contract)
    return (short(file), _lines(file).get(contract.name, 1)) if file else ("<unknown>", 1)


@cache
def _lines(file: str) -> dict[str, int]:
    """Name of a contract -> line of the call that makes it."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        keyword.value.value: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "name"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    }
