"""Planted layer norms and residual tails in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.add_rms_tail import add_rms_tail_kernel, add_rms_tail_triton
from contract.kernels.triton.layer_norm import layer_norm_kernel, layer_norm_triton
from contract.kernels.triton.row_tiles import row_tile
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty_layer_norm(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    x_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row, rounded once."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < d
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) * inverse_d
    centred = value - mean
    if FAULT == "one_pass":
        variance = tl.sum(value * value, 0) * inverse_d - mean * mean
    else:
        variance = tl.sum(centred * centred, 0) * inverse_d
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    result = centred * tl.rsqrt(variance + eps) * gain + offset
    tl.store(out + row * d + column, result.to(tl.bfloat16), mask=inside)


def faulty(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, fault: str
) -> torch.Tensor:
    """One program a row, with that fault."""
    rows, d = x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    faulty_layer_norm[(rows,)](
        x, weight, bias, out, d, x.stride(0), 1.0 / d, eps,
        FAULT=fault, BLOCK=row_tile(d)["BLOCK"], num_warps=4,
    )  # fmt: skip
    return out


@red("layer_norm", profile="once", gate="exact", name="triton.one_pass", **TRITON)
def one_pass(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """mean(x^2) - m^2."""
    return faulty(x, weight, bias, eps, "one_pass")


@red("layer_norm", profile="once", gate="exact", name="triton.deviations_unmasked", **TRITON)
def deviations_unmasked(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Columns behind the row are -m in the sum of squares."""
    return faulty(x, weight, bias, eps, "mask")


@red("layer_norm", profile="each_op", gate="exact", name="triton.in_registers", **TRITON)
def in_registers(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Steps are not rounded where their roundings are named."""
    return layer_norm_triton(x, weight, bias, eps=eps, profile="once")


@green("layer_norm", profile=("once", "each_op"), name="triton.one_warp", **TRITON)
def one_warp(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, profile: str
) -> torch.Tensor:
    """One warp and a tile twice as wide: other trees of both sums."""
    rows, d = x.shape
    out = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    layer_norm_kernel[(rows,)](
        x, weight, bias, out, rows, d, x.stride(0), d, 1.0 / d, eps,
        EACH=profile == "each_op", ROWS=1, BLOCK=2 * row_tile(d)["BLOCK"], num_warps=1,
    )  # fmt: skip
    return out


def tail(
    x: Any, residual: Any, weight: Any, eps: float, residual_stride: int, tile: dict[str, int]
) -> Any:
    """The right kernel without branch norm and scalar, under each, launched like this."""
    rows, d = x.shape
    total, out = torch.empty((2, rows, d), dtype=x.dtype, device=x.device)
    add_rms_tail_kernel[(-(-rows // tile["ROWS"]),)](
        x, residual, weight, None, None, total, out, rows, d, x.stride(0), residual_stride, 1.0 / d, eps,
        BRANCH_NORM=False, SCALE=False, BRANCH=True, SUM=True, NORMED=False, STORED=True, **tile,
    )  # fmt: skip
    return total, out


@red(
    "add_rms_tail", profile="each", gate="shapes", name="triton.residual_stride",
    branch_norm="no", scale="no", **TRITON,
)  # fmt: skip
def residual_stride(x: Any, residual: Any, weight: Any, *, eps: float) -> Any:
    """Rows of the residual are found by the width, where they have gaps too."""
    return tail(x, residual, weight, eps, x.shape[1], row_tile(x.shape[1]))


@red(
    "add_rms_tail", profile="each", gate="exact", name="triton.unrounded",
    branch_norm="no", scale="no", **TRITON,
)  # fmt: skip
def unrounded(x: Any, residual: Any, weight: Any, *, eps: float) -> Any:
    """The norm reads the sum in registers, not the total as it is stored."""
    return add_rms_tail_triton(x, residual, weight, eps=eps, profile="fused")


@red(
    "add_rms_tail", profile="each_norm", gate="exact", name="triton.branch_in_registers",
    branch_norm="yes", scale="no", **TRITON,
)  # fmt: skip
def branch_in_registers(
    x: Any, residual: Any, weight: Any, branch_weight: Any, *, eps: float
) -> Any:
    """The branch is not rounded after its norm."""
    return add_rms_tail_triton(x, residual, weight, branch_weight, eps=eps, profile="fused")


@green(
    "add_rms_tail", profile="each", name="triton.one_warp", branch_norm="no", scale="no", **TRITON
)
def tail_one_warp(x: Any, residual: Any, weight: Any, *, eps: float) -> Any:
    """One warp and a tile twice as wide: another tree of the sum."""
    tile = {"ROWS": 1, "BLOCK": 2 * row_tile(x.shape[1])["BLOCK"], "num_warps": 1}
    return tail(x, residual, weight, eps, residual.stride(0), tile)
