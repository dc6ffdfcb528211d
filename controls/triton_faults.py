"""Faults that GPU kernels share, as functions of a kernel: for the planted ones in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract.engines.deferred_jit import jit
from contract.lazy import lazy

if TYPE_CHECKING:
    import triton.language as tl
else:
    tl = lazy("triton.language")

#: How every control in Triton is planted.
TRITON: dict[str, Any] = {"engine": "ptx", "requires": ("triton",)}


@jit
def truncated(x: tl.tensor) -> tl.tensor:
    """An fp32 value as bf16 with the lower half of its bits cut off: a store without cvt.rn."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True).to(tl.bfloat16)


@jit
def half_of_lanes(x: tl.tensor, ROWS: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The sum of every second value of a row: a butterfly without its first step."""
    left, _ = tl.split(tl.reshape(x, (ROWS, BLOCK // 2, 2)))
    return tl.sum(left, 1, keep_dims=True)
