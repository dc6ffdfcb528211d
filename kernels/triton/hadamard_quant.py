"""A Walsh-Hadamard rotation over tiles of a row, then int8 codes: a Triton kernel.

Lanes are not mixed: a program takes eight of a row's 32 lanes, 16 bytes of each group in bf16, and all of its groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.hadamard_quant import fits
from contract.kernels.static_int8 import check_scale
from contract.kernels.triton.static_int8 import static_codes
from contract.lazy import lazy
from contract.references.hadamard_quant import LANES

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

#: Lanes of a program.
WIDTH = 8


@jit
def stage(x: tl.tensor, GROUPS: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """Sums and differences of the groups that lie SPAN apart."""
    pairs = tl.reshape(x, (GROUPS // (2 * SPAN), 2, SPAN, WIDTH))
    low, high = tl.split(tl.permute(pairs, (0, 2, 3, 1)))
    both = tl.permute(tl.join(low + high, low - high), (0, 3, 1, 2))
    return tl.reshape(both, (GROUPS, WIDTH))


@jit
def rotated(
    x: tl.tensor, GROUPS: tl.constexpr, STAGES: tl.constexpr, WIDTH: tl.constexpr
) -> tl.tensor:
    """Neighbouring groups first, then those two apart, four apart, ..."""
    for k in tl.static_range(STAGES):
        x = stage(x, GROUPS, 1 << k, WIDTH)
    return x


@jit
def rows_kernel(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    x_row: tl.tensor,
    codes_row: tl.tensor,
    folded: tl.tensor,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Codes of WIDTH lanes of one row; `folded` is the scale with the normalisation."""
    row = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    column = 32 * tl.arange(0, GROUPS)[:, None] + lane[None, :]
    x = tl.load(x_at + row * x_row + column).to(tl.float32)
    y = rotated(x, GROUPS, STAGES, WIDTH)
    codes = static_codes(y, tl.math.div_rn(1.0, folded))
    tl.store(codes_at + row * codes_row + column, codes)


@implementation(
    "hadamard_quant",
    name="triton",
    profile=("bf16_rows", "float32"),
    engine="ptx",
    requires=("triton",),
)
def hadamard_quant(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """One launch.

    Raises:
        ValueError: a width that is no power of two of groups, or a scale that is not positive.
    """
    return launch(rows_kernel, x, check_scale(scale))


def launch(kernel: Any, x: torch.Tensor, scale: float, **more: Any) -> torch.Tensor:
    """The kernel, or another with its arguments, over all rows; columns lie side by side."""
    rows, d = x.shape
    if not fits(d):
        raise ValueError(
            f"width {d}; a tile rotation needs {LANES} times a power of two, 64 or more"
        )
    groups = d // LANES
    codes = torch.empty((rows, d), dtype=torch.int8, device=x.device)
    kernel[(LANES // WIDTH, rows)](
        x, codes, x.stride(0), codes.stride(0), scale * groups**0.5,
        GROUPS=groups, STAGES=groups.bit_length() - 1, WIDTH=WIDTH,
        **{"num_warps": max(1, min(4, groups // 32)), **more},
    )  # fmt: skip
    return codes
