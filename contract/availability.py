"""Whether what an implementation requires is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def missing_reason(requires: Iterable[str]) -> str:
    """'' or the named reason for which an implementation cannot run here."""
    for name in requires:
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            return f"{name} is not installed"
    return ""
