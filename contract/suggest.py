"""What an error says of a name that nothing has: the nearest names, or those that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Names that are listed before the others are only counted.
LISTED = 8


def suggest(name: str, known: Iterable[str], command: str = "") -> str:
    """`did you mean a or b?`, or `there are a, b and 7 more: COMMAND`.

    Args:
        command: lists all of them.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:LISTED]) or "none"
    if len(names) <= LISTED:
        return f"there are {shown}"
    return f"there are {shown} and {len(names) - LISTED} more{': ' if command else ''}{command}"
