"""Tokens one after the other, and the constant expressions among them.

Source: PTX ISA, section 4.5 (Constants): constant expressions.
"""

from __future__ import annotations

from contract.engines.ptx.faults import Malformed
from contract.engines.ptx.lexer import Token, integer, tokens
from contract.engines.ptx.syntax import TYPES

DEEPEST = 64
PRECEDENCE = ("|", "^", "&", "<< >>", "+ -", "* / %")


class Cursor:
    """A place in the tokens of a text."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = tokens(source)
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, *texts: str) -> str:
        if self.next.text in texts and self.next.kind in ("sign", "dot", "name"):
            return self.take().text
        return ""

    def expect(self, *texts: str) -> Token:
        if self.next.text not in texts or self.next.kind == "text":
            raise self.wrong(" or ".join(repr(text) for text in texts))
        return self.take()

    def kind(self, kind: str, what: str) -> str:
        if self.next.kind != kind:
            raise self.wrong(what)
        return self.take().text

    def wrong(self, expected: str) -> Malformed:
        return Malformed(f"line {self.next.line}: expected {expected}, found {self.next.text!r}")

    def type(self) -> str:
        token = self.next
        if token.kind != "dot" or not TYPES.match(token.text):
            raise self.wrong("a type")
        return self.take().text[1:]

    def enter(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Malformed(f"line {self.next.line}: expected at most {DEEPEST} levels of brackets")

    def number(self, level: int = 0) -> int:
        """A constant expression of integers; of the operators of C, without comparisons and `?:`."""
        if level == len(PRECEDENCE):
            return self.unary()
        value = self.number(level + 1)
        while self.next.kind == "sign" and self.next.text in PRECEDENCE[level].split():
            line, sign = self.next.line, self.take().text
            value = _binary(sign, value, self.number(level + 1), line)
        return value

    def unary(self) -> int:
        self.enter()
        token = self.next
        if token.kind == "number":
            value = integer_of(self.take())
        elif self.accept("WARP_SZ"):
            value = 32
        elif sign := self.accept("-", "+", "~", "!"):
            value = self.unary()
            value = {"-": -value, "+": value, "~": ~value, "!": int(not value)}[sign]
        elif self.accept("("):
            if self.next.kind == "dot":
                self.type()
                self.expect(")")
                value = self.unary()
            else:
                value = self.number()
                self.expect(")")
        else:
            raise self.wrong("a number")
        self.depth -= 1
        return value


def integer_of(token: Token) -> int:
    try:
        value = integer(token.text)
    except ValueError:
        raise Malformed(f"line {token.line}: expected a number, found {token.text!r}") from None
    if value >= 1 << 64:
        raise Malformed(f"line {token.line}: expected a number of 64 bits, found {token.text}")
    return value


def _binary(sign: str, a: int, b: int, line: int) -> int:
    if sign in ("/", "%") and b == 0:
        raise Malformed(f"line {line}: expected a divisor other than 0")
    if sign in ("<<", ">>") and not 0 <= b < 64:
        raise Malformed(f"line {line}: expected a shift below 64, found {b}")
    # PTX divides as C does, toward zero
    quotient = 0 if b == 0 else abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
    values = {"+": a + b, "-": a - b, "*": a * b, "/": quotient, "%": a - quotient * b}
    values |= {"&": a & b, "|": a | b, "^": a ^ b}
    if sign == "<<":
        return (a << b) % (1 << 64)
    return a >> b if sign == ">>" else values[sign]
