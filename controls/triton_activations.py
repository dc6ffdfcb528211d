"""Planted activations in Triton: the kernels of another profile, tails, strides and stores that are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.triton_faults import TRITON, truncated
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import columns_grid, rounded, tile, wide
from contract.kernels.triton.geglu import geglu_triton, gelu
from contract.kernels.triton.softcap import softcap_kernel, softcap_triton
from contract.kernels.triton.swiglu import silu, swiglu_triton
from contract.lazy import lazy
from contract.references.gelu import CUBIC, ROOT_TWO_OVER_PI

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty_kernel(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    k: tl.tensor,
    c: tl.tensor,
    GELU: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """GeGLU or SwiGLU under two_step with one fault; `tail` and `stride` are of memory, `store` and `fp16` of rounding."""
    row, column = tile(n, BLOCK)
    inside = column < n
    if FAULT == "tail":
        inside = column < n // 8 * 8
    value = wide(gate + row * gate_stride + column, inside)
    activated = gelu(value, k, c, False, False) if GELU else silu(value, False)
    activated = activated.to(tl.float16).to(tl.float32) if FAULT == "fp16" else activated
    activated = rounded(activated, True)
    other = wide(up + row * (gate_stride if FAULT == "stride" else up_stride) + column, inside)
    if FAULT == "stride":
        other = wide(up + row * n + column, inside)
    product = activated * other
    stored = truncated(product) if FAULT == "store" else product.to(tl.bfloat16)
    tl.store(out + row * n + column, stored, mask=inside)


def faulty(gate: torch.Tensor, up: torch.Tensor, fault: str, gelu_form: bool) -> torch.Tensor:
    """All rows, with that fault; what is not stored stays 0."""
    out = torch.zeros(gate.shape, dtype=gate.dtype, device=gate.device)
    faulty_kernel[columns_grid(gate)](
        gate, up, out, gate.shape[1], gate.stride(0), up.stride(0), CUBIC, ROOT_TWO_OVER_PI,
        GELU=gelu_form, FAULT=fault, BLOCK=1024, num_warps=4,
    )  # fmt: skip
    return out


def planted(fault: str, gate: str, words: str) -> None:
    """The fault in GeGLU and in SwiGLU."""
    for kernel, form in (("geglu", True), ("swiglu", False)):

        def run(gate: Any, up: Any, which: bool = form) -> Any:
            return faulty(gate, up, fault, which)

        run.__doc__ = words
        red(kernel, profile="two_step", gate=gate, name=f"triton.{fault}", **TRITON)(run)


planted(
    "tail", "shapes", "Columns in groups of eight: the last ones of an odd width are not written."
)
planted("stride", "shapes", "Rows of up are found by the width, where they have gaps too.")
planted("store", "exact", "The result is cut off to bf16.")
planted("fp16", "stress", "The activation passes through fp16, which ends at 65504.")


@red("geglu", profile="two_step", gate="exact", name="triton.one_rounding", **TRITON)
def geglu_one_rounding(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation stays in registers where its rounding is named."""
    return geglu_triton(gate, up, profile="once")


@red("geglu", profile="each_op", gate="exact", name="triton.square_rounded", **TRITON)
def geglu_square(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Two products and fp32's constants where one power and bf16's are named."""
    return geglu_triton(gate, up, profile="each_product")


@red("swiglu", profile="each_op", gate="shapes", name="triton.plain_form", **TRITON)
def swiglu_plain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Exponential and sigmoid stay in registers where their roundings are named."""
    return swiglu_triton(gate, up, profile="two_step")


@red("softcap", profile="each_op", gate="exact", name="triton.in_registers", **TRITON)
def softcap_in_registers(x: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Quotient and tanh are not rounded."""
    return softcap_triton(x, cap=cap, profile="once")


@red("softcap", profile=("each_op", "once"), gate="shapes", name="triton.row_stride", **TRITON)
def softcap_row_stride(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """Rows are found by the width, where they have gaps too."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.shape[1]
    softcap_kernel[columns_grid(x)](
        x, out, n, n, n, cap, EACH_OP=profile == "each_op", EXACT=False, BLOCK=1024, num_warps=4
    )
    return out


@green("softcap", profile=("each_op", "once"), name="triton.small_blocks", **TRITON)
def softcap_small_blocks(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """256 columns a program, two warps."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    softcap_kernel[columns_grid(x, 256)](
        x, out, x.shape[1], x.stride(0), out.stride(0), cap,
        EACH_OP=profile == "each_op", EXACT=False, BLOCK=256, num_warps=2,
    )  # fmt: skip
    return out


@green("geglu", profile="two_step", name="triton.small_blocks", **TRITON)
def geglu_small_blocks(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """256 columns a program."""
    return small_blocks(gate, up, True)


@green("swiglu", profile="two_step", name="triton.small_blocks", **TRITON)
def swiglu_small_blocks(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """256 columns a program."""
    return small_blocks(gate, up, False)


def small_blocks(gate: torch.Tensor, up: torch.Tensor, gelu_form: bool) -> torch.Tensor:
    """Without a fault, 256 columns a program and one warp."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    faulty_kernel[columns_grid(gate, 256)](
        gate, up, out, gate.shape[1], gate.stride(0), up.stride(0), CUBIC, ROOT_TWO_OVER_PI,
        GELU=gelu_form, FAULT="", BLOCK=256, num_warps=1,
    )  # fmt: skip
    return out
