"""The softmax of Triton's own tutorial, which is legal: `tl.exp`, and `/` between two fp32 tensors (PTX: div.full)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green
from contract.engines.deferred_jit import jit
from contract.kernels.triton.row_tiles import by_rows
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton
    import triton.language as tl
else:
    torch, triton, tl = lazy("torch"), lazy("triton"), lazy("triton.language")


@jit
def softmax_kernel(
    x: tl.tensor, out: tl.tensor, stride: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """A row a block."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    wide = tl.load(x + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    raised = tl.exp(wide - tl.max(wide, axis=0))
    shares = raised / tl.sum(raised, axis=0)
    tl.store(out + row * n + column, shares.to(out.dtype.element_ty), mask=inside)


@green("softmax", profile="once", name="triton.tutorial", engine="ptx", requires=("triton",))
def tutorial(x: torch.Tensor) -> torch.Tensor:
    """Its quotients underflow: the lower end of the smallest is a zero and no negative number."""
    x = by_rows(x)
    rows, n = x.shape
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    softmax_kernel[(rows,)](x, out, x.stride(0), n, BLOCK=triton.next_power_of_2(n), num_warps=4)
    return out
