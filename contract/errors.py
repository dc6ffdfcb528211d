"""The exceptions of this project, one tree.

ContractError                 anything a user can repair; printed as one line, never with a traceback
|- DeclarationError           a contract, profile, operand, implementation or control is declared wrongly
|- SuiteError                 a suite (module, folder, entry point) cannot be loaded
|- UsageError                 an argument of the command line or of an API call names nothing that exists
|- CaseError                  operands that do not fit the contract (shape, dtype, missing, scalar)
|- StoreError                 a file of the store, of rows or of records cannot be read or written
|- CheckpointError            a file of weights is not there, is broken, or holds other tensors than a model needs
|- TokenizerError             a tokenizer or a chat template is broken, or is given what it cannot take
|- NotVerified                a kernel has no green receipt for this source and environment
'- NotAllowed                 an output that the contract does not allow (also an AssertionError)
"""

from __future__ import annotations


class ContractError(Exception):
    """Base of every error that names its own repair."""


class DeclarationError(ContractError):
    """A declaration that cannot mean anything; raised where it is written."""


class SuiteError(ContractError):
    """A suite that cannot be loaded."""


class UsageError(ContractError):
    """A name or value given by the caller that does not exist."""


class CaseError(ContractError):
    """Operands that do not fit their contract."""


class StoreError(ContractError):
    """A stored file that cannot be read or written."""


class CheckpointError(ContractError):
    """A file of weights that cannot be used."""


class TokenizerError(ContractError):
    """A tokenizer or chat template, or a text or id given to it, that cannot be used."""


class NotVerified(ContractError):
    """No green receipt; the message names the command that would make one."""


class NotAllowed(ContractError, AssertionError):
    """An output outside its range; the message names row, element, bits and the allowed bits."""
