"""What can go wrong with PTX: the kernel is wrong, the executor is too small, or the text is no PTX."""

from __future__ import annotations

from contract.errors import ContractError


class PtxFault(ContractError):
    """The kernel is wrong: out of bounds, misaligned, a race, an uninitialised read, a stuck barrier."""


class Unsupported(ContractError):
    """An instruction, modifier or directive that the executor does not know; says nothing of the kernel."""


class Malformed(ContractError):
    """Text that is not PTX."""
