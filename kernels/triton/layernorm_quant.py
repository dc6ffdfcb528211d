"""Layer norm, then int8 codes: a Triton kernel, one program a row, two passes over registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.static_int8 import check_scale
from contract.kernels.triton.rmsnorm_quant import DEPTH, launch
from contract.kernels.triton.static_int8 import static_codes
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def rows_kernel(
    x_at: tl.tensor,
    weight_at: tl.tensor,
    bias_at: tl.tensor,
    codes_at: tl.tensor,
    d: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    BETWEEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < d
    x = tl.load(x_at + row * x_row + column, mask, other=0.0).to(tl.float32)
    # not d.to(): where d is 1, Triton makes it a number of Python's
    mean = tl.math.div_rn(tl.sum(x, 0), d * 1.0)
    # columns beyond the row would add the mean's square
    centred = tl.where(mask, x - mean, 0.0)
    variance = tl.math.div_rn(tl.sum(centred * centred, 0), d * 1.0)
    inverse = tl.math.div_rn(1.0, tl.sqrt_rn(variance + eps))
    weight = tl.load(weight_at + column, mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_at + column, mask, other=0.0).to(tl.float32)
    y = centred * inverse * weight + bias
    if BETWEEN:
        y = y.to(tl.bfloat16).to(tl.float32)
    codes = static_codes(y, tl.math.div_rn(1.0, scale))
    tl.store(codes_at + row * codes_row + column, codes, mask)


@implementation(
    "layernorm_quant",
    name="triton",
    profile=("fused", "bf16_between"),
    engine="ptx",
    requires=("triton",),
    order={"mean": DEPTH, "variance": DEPTH},
)
def layernorm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """One launch.

    Raises:
        ValueError: a scale that is not positive, or a row that is too wide for one program.
    """
    return launch(rows_kernel, x, (weight, bias), eps, check_scale(scale), profile)
