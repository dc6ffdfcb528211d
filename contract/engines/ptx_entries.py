"""Which entries a PTX text has, and where their parameters lie in the parameter block.

PTX ISA, "Kernel Function Parameters": a parameter has the alignment of its type, or that of its `.align`, and follows
the one before it. Only this much of PTX is read here: to pack the arguments of a launch.
"""

from __future__ import annotations

import re

_ENTRY = re.compile(r"\.entry\s+([\w$.%]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.([a-z]+)(\d+)"
    r"(?:\s+\.ptr(?:\s*\.(?:global|shared|local|const))?(?:\s*\.align\s+\d+)?)?"
    r"\s+[\w$%]+\s*(?:\[(\d+)\])?\s*\Z"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def entries(ptx: str) -> dict[str, list[tuple[int, int]]]:
    """Entry -> (offset, size) in bytes of each of its parameters.

    Raises:
        ValueError: a parameter that does not read as one.
    """
    text = _COMMENT.sub("", ptx)
    return {name: _places(body or "") for name, body in _ENTRY.findall(text)}


def _places(body: str) -> list[tuple[int, int]]:
    places, end = [], 0
    for declaration in filter(None, map(str.strip, body.split(","))):
        found = _PARAMETER.match(declaration)
        if not found:
            raise ValueError(f"PTX parameter {declaration!r} is not understood")
        align, _, bits, count = found.groups()
        size = int(bits) // 8
        offset = -(-end // int(align or size)) * int(align or size)
        end = offset + size * int(count or 1)
        places.append((offset, end - offset))
    return places
