"""Triton's cache of compiled code, with a seal on every entry: what is not what was written is compiled again.

With each cubin stays what ptxas said while it made it, the only source of spilled bytes and barriers.

Triton names an entry by what it was made from, and reads what is in it unseen. A file that a full disk or a crash cut
short would be executed as the kernel, and be a failure of the kernel.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from contract.device_tools import of_triton_alone

# Among the metadata of a compiled kernel.
_LOG = "ptxas_log"
_writing = threading.Lock()


@contextmanager
def sealed() -> Iterator[None]:
    """Let Triton keep what it compiles sealed, unless $TRITON_CACHE_MANAGER names another keeper."""
    from triton import knobs
    from triton.backends.nvidia.compiler import CUDABackend

    state, make = dict(vars(knobs.cache)), CUDABackend.make_cubin
    if knobs.cache.manager_class is None:
        vars(knobs.cache)["manager_class"] = _keeper()
    CUDABackend.make_cubin = _logged(make)
    try:
        yield
    finally:
        CUDABackend.make_cubin = make
        vars(knobs.cache).clear()
        vars(knobs.cache).update(state)


def ptxas_log(compiled: Any) -> str:
    """What `ptxas -v` said when it made the cubin of a compiled kernel; '' where that was not kept."""
    return str(getattr(compiled.metadata, _LOG, ""))


def _logged(make: Callable[..., bytes]) -> Callable[..., bytes]:
    """Triton's step from PTX to a cubin, which puts among the metadata what its ptxas says."""
    if getattr(make, "logs", False):
        # a context inside a context
        return make

    def made(self: Any, src: Any, metadata: dict[str, Any], *rest: Any) -> bytes:
        from triton import knobs

        said = io.StringIO()
        # kernels may be compiled in several threads, and where Triton writes to is the process's
        with _writing:
            state = dict(vars(knobs.nvidia))
            vars(knobs.nvidia)["dump_ptxas_log"] = True
            try:
                with redirect_stdout(said):
                    cubin = make(self, src, metadata, *rest)
            except Exception:
                # how to repeat it
                print(said.getvalue(), end="")
                raise
            finally:
                vars(knobs.nvidia).clear()
                vars(knobs.nvidia).update(state)
        metadata[_LOG] = said.getvalue()
        return cubin

    made.logs = True  # type: ignore[attr-defined]
    return made


@cache
def _keeper() -> Any:
    from triton.runtime.cache import FileCacheManager

    class Sealed(FileCacheManager):  # type: ignore[misc]  # triton is untyped here
        def put_group(self, filename: str, group: Mapping[str, str]) -> Any:
            path = super().put_group(filename, group)
            self.put(_seal(group), _sealed_by(filename), binary=False)
            return path

        def get_group(self, filename: str) -> Any:
            """The files of an entry; None, as where there is none, for one that is damaged or was never sealed."""
            try:
                found = super().get_group(filename)
                seal = self.get_file(_sealed_by(filename))
                whole = found and seal and Path(seal).read_text() == _seal(found)
            except (OSError, ValueError, AttributeError):
                return None
            return found if whole else None

    return Sealed


def _sealed_by(filename: str) -> str:
    return f"{filename}.seal"


def _seal(group: Mapping[str, str]) -> str:
    """The hash of every file of an entry, and the tools that assembled it, as text: Triton asks those for a version only."""
    hashes = {
        name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in group.items()
    }
    return json.dumps({**hashes, "tools": of_triton_alone()}, sort_keys=True)
