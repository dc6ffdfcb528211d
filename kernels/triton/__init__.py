"""Implementations in Triton, one file a kernel, of the kernel's name.

A file lists without Triton and where Triton is not installed; it is imported at the first launch:

    from __future__ import annotations

    from typing import TYPE_CHECKING

    from contract import implementation
    from contract.engines.deferred_jit import jit
    from contract.lazy import lazy

    if TYPE_CHECKING:
        import torch
        import triton.language as tl
    else:
        torch, tl = lazy("torch"), lazy("triton.language")


    @jit
    def scale_kernel(x: tl.tensor, out: tl.tensor, n: tl.tensor, s: tl.tensor, BLOCK: tl.constexpr) -> None:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(out + at, tl.load(x + at, mask=inside) * s, mask=inside)


    @implementation("scale", name="triton", profile="once", engine="ptx", requires=("triton",))
    def scale_triton(x: torch.Tensor, *, s: float) -> torch.Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        n = x.numel()
        scale_kernel[(-(-n // 1024),)](x.contiguous(), out, n, s, BLOCK=1024)
        return out

What the pattern rests on:

- The wrapper allocates, computes the grid and launches, as any Triton wrapper does; it runs on CPU tensors, and the ptx
  engine executes every launch at once on their memory. It may launch several kernels, with torch calls between them.
- Operands come contiguous, with gaps between their rows, or at addresses that are no multiple of 16 bytes: pass strides
  to the kernel, or copy. Triton specialises on such addresses by itself.
- Parameters of kernels are annotated `tl.tensor` (numbers, too: inside the kernel they are tensors) or `tl.constexpr`.
  Triton evaluates annotations of helpers, and takes only what it owns.
- Helpers are `@jit` as well, of the same file or imported. A constant is passed as `tl.constexpr`: one that is made at
  module level would import Triton there.
- Multiply and add are not fused, here as on a device: `@jit` of this module pins it. Write `tl.math.fma(a, b, c)` where one rounding is meant, so
  that the code that is executed and the code that ptxas emits round alike. A conversion to bf16 is to nearest even.
- `@autotune([{"kwargs": {"BLOCK": 512}, "num_warps": 4}, ...], key=["n"])` of contract.engines.deferred_jit stands above
  `@jit`; each configuration is judged, the first is the wrapper's result.
"""
