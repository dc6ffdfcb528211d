"""Contracts for compute kernels: every output bit is one that the contract allows, or the kernel is refused."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contract import strategies
    from contract.api import allowed, assert_allowed
    from contract.declare import Contract, Launch, Operand, Profile, Scalar, output, tensor
    from contract.errors import ContractError, NotAllowed, NotVerified
    from contract.readings.base import Quantity, Reading
    from contract.registry import green, implementation, red, register
    from contract.verify import verified

# Where each public name lives. They are imported when first used: `contract --help` and an unused pytest plugin must
# cost neither numpy nor torch.
_HOMES = {
    "Contract": "contract.declare", "Launch": "contract.declare", "Operand": "contract.declare",
    "Profile": "contract.declare", "Scalar": "contract.declare", "output": "contract.declare",
    "tensor": "contract.declare", "ContractError": "contract.errors", "NotAllowed": "contract.errors",
    "NotVerified": "contract.errors", "Quantity": "contract.readings.base", "Reading": "contract.readings.base",
    "green": "contract.registry", "implementation": "contract.registry", "red": "contract.registry",
    "register": "contract.registry", "allowed": "contract.api", "assert_allowed": "contract.api",
    "verified": "contract.verify",
}  # fmt: skip

__all__ = [
    "Contract", "ContractError", "Launch", "NotAllowed", "NotVerified", "Operand", "Profile", "Quantity", "Reading",
    "Scalar", "allowed", "assert_allowed", "green", "implementation", "output", "red", "register", "strategies", "tensor",
    "verified",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "strategies":
        return importlib.import_module("contract.strategies")
    if name not in _HOMES:
        raise AttributeError(f"module 'contract' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
