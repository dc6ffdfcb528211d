"""Triton, and what is loaded and computed once in each process that uses it; a worker forked from one that imported this
has it.

Its key of itself, a part of the name of all that it compiles, is a hash over its shared library: half a second. The
first launch imports Gluon, to know its descriptors from other arguments, and the name of a cubin has the version that
its ptxas states. The engine that executes launches and the count of their resources are imported, too: 0.1 s.
"""

from __future__ import annotations

import contextlib

import triton

from contract.compiled import measure
from contract.engines import executed

# Nothing here decides: what is missing or fails is met, and told, where it is needed.
with contextlib.suppress(Exception):
    from triton.runtime.cache import triton_key

    triton_key()
with contextlib.suppress(Exception):
    import triton.experimental.gluon.nvidia.hopper
with contextlib.suppress(Exception):
    from triton.backends.nvidia.compiler import get_ptxas_version

    from contract.engines.triton_launch import ptxas_version

    # ptxas, and that of sm_90 and later
    for arch in (80, 90):
        get_ptxas_version(arch)
        ptxas_version(arch)

__all__ = ["executed", "measure", "triton"]
