"""PTX source to tokens, with the line of each.

An opcode, a special register and a vector element are one token each: what follows a name without a space and begins
with a dot belongs to it (`ld.global.L1::evict_last.b32`, `%tid.x`).

Source: PTX ISA, section 4 (Syntax): comments, identifiers, integer and floating-point constants.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from contract.engines.ptx.faults import Malformed


@dataclass(frozen=True, slots=True)
class Token:
    """kind: name, dot (a word that begins with a dot), number, float, text, sign, end."""

    kind: str
    text: str
    line: int
    start: int


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<float>0[fF][0-9a-fA-F]{8}(?![\w.])|0[dD][0-9a-fA-F]{16}(?![\w.])|\d+\.\d*(?:[eE][+-]?\d+)?(?!\w)|\d+[eE][+-]?\d+(?!\w))
    |(?P<number>(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?(?![\w]))
    |(?P<name>[A-Za-z_$%][\w$]*(?:\.\w+(?:::\w+)*)*)
    |(?P<dot>\.[A-Za-z_]\w*(?:::\w+)*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<sign><<|>>|[-+*/%&|^~!?:;,@=(){}\[\]<>])""",
    re.VERBOSE | re.DOTALL,
)


def tokens(source: str) -> list[Token]:
    """All tokens of the text, and one of kind `end`."""
    found: list[Token] = []
    at, line = 0, 1
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            near = source[at : at + 20].split("\n")[0]
            raise Malformed(f"line {line}: {near!r} begins no word, number or sign of PTX")
        kind, text = match.lastgroup or "", match[0]
        if kind != "space":
            found.append(Token(kind, text, line, at))
        line += text.count("\n")
        at = match.end()
    found.append(Token("end", "the end of the text", line, at))
    return found


def integer(text: str) -> int:
    """The value of an integer constant: decimal, hexadecimal, octal (leading 0) or binary, with or without U."""
    digits = text.rstrip("U")
    if digits[:2] in ("0x", "0X", "0b", "0B"):
        return int(digits, 0)
    if len(digits) > 1 and digits[0] == "0":
        return int(digits, 8)
    return int(digits)
