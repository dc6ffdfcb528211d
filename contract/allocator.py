"""The C library's allocator, told to keep what is freed.

Mapped anew for each array, pages cost more than most steps of NumPy on it. Not for a worker that calls code of the
host: what that frees must not be at hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 256 MiB of freed arrays."""
    # other C libraries have no mallopt
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(_M_TRIM_THRESHOLD, 256 << 20)
