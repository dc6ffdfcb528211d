"""RMS norm with gain 1 + w, then int8 codes: a Triton kernel, one program a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.static_int8 import check_scale
from contract.kernels.triton.static_int8 import static_codes
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

#: Columns that a thread holds at most, for rows of up to WIDEST: the row stays in registers between its two readings.
PER_THREAD, WIDEST = 32, 32_768
#: Additions that a term makes: those in its thread, 5 over the lanes, 5 over at most 32 warps.
DEPTH = PER_THREAD + 10


@jit
def rows_kernel(
    x_at: tl.tensor,
    weight_at: tl.tensor,
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
    mean = tl.math.div_rn(tl.sum(x * x, 0), d * 1.0)
    inverse = tl.math.div_rn(1.0, tl.sqrt_rn(mean + eps))
    weight = tl.load(weight_at + column, mask, other=0.0).to(tl.float32)
    y = x * inverse * (1.0 + weight)
    if BETWEEN:
        y = y.to(tl.bfloat16).to(tl.float32)
    codes = static_codes(y, tl.math.div_rn(1.0, scale))
    tl.store(codes_at + row * codes_row + column, codes, mask)


@implementation(
    "rmsnorm_quant",
    name="triton",
    profile=("fused", "bf16_between"),
    engine="ptx",
    requires=("triton",),
    order={"mean": DEPTH},
)
def rmsnorm_quant(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, scale: float, profile: str
) -> torch.Tensor:
    """One launch.

    Raises:
        ValueError: a scale that is not positive, or a row that is too wide for one program.
    """
    return launch(rows_kernel, x, (weight,), eps, check_scale(scale), profile)


def launch(
    kernel: Any,
    x: torch.Tensor,
    parameters: tuple[torch.Tensor, ...],
    eps: float,
    scale: float,
    profile: str,
    **more: Any,
) -> torch.Tensor:
    """The kernel, or another with its arguments, over all rows; columns lie side by side."""
    rows, d = x.shape
    codes = torch.empty((rows, d), dtype=torch.int8, device=x.device)
    block, warps = tile_of(d)
    more = {"num_warps": warps, **more}
    kernel[(rows,)](
        x, *parameters, codes, d, x.stride(0), codes.stride(0), eps, scale,
        BETWEEN=profile == "bf16_between", BLOCK=block, **more,
    )  # fmt: skip
    return codes


def tile_of(d: int) -> tuple[int, int]:
    """Columns of a program that holds a row, and its warps: 8 to PER_THREAD columns a thread.

    Raises:
        ValueError: a row that does not fit.
    """
    if d > WIDEST:
        raise ValueError(f"rows of {d}; one program holds {WIDEST:,} columns")
    block = max(64, 1 << (d - 1).bit_length())
    return block, min(32, max(1, block // 512))
