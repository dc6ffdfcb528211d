"""The libraries of the extra [models], imported when first used."""

from __future__ import annotations

import importlib
from typing import Any

from contract.errors import UsageError


def extra(module: str) -> Any:
    """The module of that name.

    Raises:
        UsageError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{module.partition('.')[0]} cannot be imported ({error}); install it with"
            " pip install 'kernel-contract[models]'"
        ) from error
