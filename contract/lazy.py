"""Modules that are imported when first used.

torch costs two seconds; listing, selecting and reading receipts must not pay for it. A kernel file writes

    if TYPE_CHECKING:
        import torch
    else:
        torch = lazy("torch")
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        # the import system takes ten times as long to say what it has already
        module = sys.modules.get(self.__name__) or importlib.import_module(self.__name__)
        return getattr(module, attribute)


def lazy(name: str) -> Any:
    """A stand-in for the module `name`, imported at the first use of one of its attributes."""
    return _Lazy(name)


def is_lazy(value: object) -> bool:
    """Whether it is a stand-in that `lazy` made."""
    return isinstance(value, _Lazy)
