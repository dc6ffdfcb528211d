"""`os._exit` while code runs that is not ours: a run that it ended with 0 would read as green."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NoReturn


@contextlib.contextmanager
def exit_refused() -> Iterator[Callable[[int], NoReturn]]:
    """Inside it `os._exit` is an exception, in every thread; gives the real one."""
    leave, owner = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        # a fork ends as it means to
        if os.getpid() != owner:
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse
    try:
        yield leave
    finally:
        os._exit = leave
