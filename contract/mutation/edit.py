"""A text by the positions of its syntax tree, and one change of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

# What stands for itself wherever it is put.
_FLAT = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)


@dataclass(frozen=True)
class Edit:
    """One change of a text.

    Attributes:
        kind: in words; line: at which it begins, the first is 1.
        start, end: the bytes of the text that are replaced; text: by these.
        cast: where the call ends that gives a value another format, -1 where none is changed; dtype: the format that it then
            has, None where it keeps its own.
    """

    kind: str
    line: int
    start: int
    end: int
    text: str
    cast: int = -1
    dtype: str | None = None


class Source:
    """A text by positions of its syntax tree: bytes, as `ast` counts columns."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.tree: ast.Module = ast.parse(text)
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def line_of(self, place: int) -> int:
        return self.data.count(b"\n", 0, place) + 1

    def of(self, node: ast.expr) -> str:
        """What is written there, in parentheses where another place could read it otherwise."""
        text = self.data[self.start(node) : self.end(node)].decode()
        return text if isinstance(node, _FLAT) else f"({text})"

    def applied(self, edit: Edit) -> str:
        """The text with one change."""
        return (self.data[: edit.start] + edit.text.encode() + self.data[edit.end :]).decode()
