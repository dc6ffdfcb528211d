"""Small kernels for the tests of the PTX executor: a body in PTX, run on NumPy arrays."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.machine import Launched, launch
from contract.engines.ptx.memory import GlobalMemory
from contract.engines.ptx.program import Program, decode
from contract.engines.ptx.text import parse

Array = NDArray[Any]
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def source(body: str, pointers: int, head: str = "", directives: str = "") -> str:
    """An entry `k` of some pointers.

    %d0, %d1, ... hold the pointers, %r0 is %tid.x, %r1 the thread's number in the grid, %e0, %e1, ... the pointers
    plus four bytes for each thread of the grid before this one.
    """
    params = ", ".join(f".param .u64 p{i}" for i in range(pointers))
    loads = "".join(
        f"ld.param.u64 %d{i}, [p{i}]; add.s64 %e{i}, %d{i}, %d9;\n" for i in range(pointers)
    )
    return (
        f"{HEAD}{head}\n.visible .entry k({params}) {directives}\n{{\n"
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .f32 %f<9>;\n"
        ".reg .b64 %d<20>, %e<9>; .reg .f64 %fd<9>;\n"
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r39, %ntid.x;\n"
        "mad.lo.u32 %r1, %r1, %r39, %r0; mul.wide.u32 %d9, %r1, 4;\n"
        f"{loads}{body}\nret;\n}}\n"
    )


def program(body: str, pointers: int, head: str = "", directives: str = "") -> Program:
    return decode(parse(source(body, pointers, head, directives)))


def memory(*arrays: Array, fresh: tuple[int, ...] = ()) -> GlobalMemory:
    """The arrays as regions a0, a1, ...; those in `fresh` have never been written."""
    made = GlobalMemory()
    for i, array in enumerate(arrays):
        made.add(array.ctypes.data, array.reshape(-1).view(np.uint8), f"a{i}", i not in fresh)
    return made


def size(n: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (n, 1, 1) if isinstance(n, int) else n


def run(
    body: str,
    *arrays: Array,
    block: int | tuple[int, int, int] = 32,
    grid: int | tuple[int, int, int] = 1,
    head: str = "",
    directives: str = "",
    fresh: tuple[int, ...] = (),
    **options: Any,
) -> Launched:
    """Run a body on arrays, which it may change."""
    params = struct.pack(f"<{len(arrays)}Q", *(a.ctypes.data for a in arrays))
    made = program(body, len(arrays), head, directives)
    return launch(made, size(grid), size(block), params, memory(*arrays, fresh=fresh), **options)
