"""Errors of reading what compilers wrote."""

from __future__ import annotations

from contract.errors import ContractError


class Unreadable(ContractError):
    """A cubin, a compiler's log or a listing that does not hold what it should; the message names what is missing."""


class Disagreement(ContractError):
    """Two ways of reading one number gave two; the message names every value."""


class Refused(ContractError):
    """Code that an assembler does not take, whoever runs it again; the message is the assembler's."""
