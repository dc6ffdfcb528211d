"""HTML and SVG as nested calls: whatever is not markup already is escaped."""

from __future__ import annotations

import html
import re

#: What neither XML 1.0 (section 2.2, production Char) nor HTML can hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VOID = frozenset({"meta", "br", "path", "line", "rect"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def printable(text: str) -> str:
    """The text without control characters and lone surrogates."""
    return _FORBIDDEN.sub("", text)


def text(value: object) -> Markup:
    """A value as text, escaped; markup as it is."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(str(value))))


def el(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. Attributes: a trailing underscore is dropped (`class_`), others become dashes; None leaves one out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{said}>" if name in ("meta", "br") else f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{''.join(map(text, children))}</{name}>")
