"""Planted rotations in Triton: of heads alone, with their norm, and of a vision tower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.kernels.triton.qk_rows import qk_rows_triton
from contract.kernels.triton.rope import rope_kernel, rope_triton
from contract.kernels.triton.row_tiles import power_of_two
from contract.kernels.triton.vit_qkv import vit_qkv_triton
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def one_head(x: Any, cos: Any, sin: Any, cos_stride: int, *, rest: bool = True) -> Any:
    """Rope's kernel for pairs in halves under each_op, a warp a head; what is not stored stays 0."""
    tokens, heads, d = x.shape
    half = cos.shape[1]
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    rope_kernel[(tokens, heads)](
        x, cos, sin, out, heads, d, half, x.stride(0), x.stride(1), cos_stride, sin.stride(0),
        SIDES=1, EACH=True, HEADS=1, RUN=power_of_two(half),
        REST=power_of_two(d - 2 * half) if rest and d > 2 * half else 0, num_warps=1,
    )  # fmt: skip
    return out


@red(
    "rope", profile="each_op", gate="shapes", name="triton.table_stride", pairing="halves", **TRITON
)
def table_stride(x: Any, cos: Any, sin: Any) -> Any:
    """Rows of cos are found by their width, where they have gaps too."""
    return one_head(x, cos, sin, cos.shape[1])


@red(
    "rope", profile="each_op", gate="shapes", name="triton.rest_dropped", pairing="halves", **TRITON
)
def rest_dropped(x: Any, cos: Any, sin: Any) -> Any:
    """Dims behind the rotary ones are not stored."""
    return one_head(x, cos, sin, cos.stride(0), rest=False)


@red(
    "rope", profile="each_op", gate="exact", name="triton.in_registers", pairing="halves", **TRITON
)
def in_registers(x: Any, cos: Any, sin: Any) -> Any:
    """Products are not rounded where their roundings are named."""
    return rope_triton(x, cos, sin, pairing="halves", profile="once")


@red(
    "rope",
    profile=("each_op", "once"),
    gate="shapes",
    name="triton.halves",
    pairing="interleaved",
    **TRITON,
)
def other_pairs(x: Any, cos: Any, sin: Any, *, profile: str) -> Any:
    """Another model's pairs."""
    return rope_triton(x, cos, sin, pairing="halves", profile=profile)


@green("rope", profile="each_op", name="triton.one_head", pairing="halves", **TRITON)
def warp_a_head(x: Any, cos: Any, sin: Any) -> Any:
    """A program a head, one warp each."""
    return one_head(x, cos, sin, cos.stride(0))


@red("qk_rows", profile="two_step", gate="exact", name="triton.norm_in_registers", **TRITON)
def norm_in_registers(
    q: Any, k: Any, q_weight: Any, k_weight: Any, cos: Any, sin: Any, *, eps: float
) -> Any:
    """The norm is not rounded before its gain."""
    return qk_rows_triton(q, k, q_weight, k_weight, cos, sin, eps=eps, gain="w", profile="each_op")


@red(
    "qk_rows", profile="each_op", gate="shapes", name="triton.gain_w", v_norm="no", gain="1+w", **TRITON
)  # fmt: skip
def gain_w(q: Any, k: Any, q_weight: Any, k_weight: Any, cos: Any, sin: Any, *, eps: float) -> Any:
    """The gain enters as w."""
    return qk_rows_triton(q, k, q_weight, k_weight, cos, sin, eps=eps, gain="w", profile="each_op")


@red(
    "qk_rows", profile="each_op", gate="shapes", name="triton.v_from_k", v_norm="yes", gain="w", **TRITON
)  # fmt: skip
def v_from_k(
    q: Any, k: Any, v: Any, q_weight: Any, k_weight: Any, cos: Any, sin: Any, *, eps: float
) -> Any:
    """Values are the normed keys."""
    return qk_rows_triton(
        q, k, q_weight, k_weight, cos, sin, k, eps=eps, gain="w", profile="each_op"
    )


def swapped(table: torch.Tensor) -> torch.Tensor:
    """The column's half of a table for the row's."""
    return table.roll(table.shape[1] // 2, 1)


@red("vit_qkv", profile=("each_step", "two_step"), gate="shapes", name="triton.axes", **TRITON)
def axes(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, q_weight: Any, k_weight: Any, *, eps: float, profile: str
) -> Any:  # fmt: skip
    """The halves of a head turn by the row and by the column."""
    return vit_qkv_triton(
        q, k, v, swapped(cos), swapped(sin), q_weight, k_weight, eps=eps, profile=profile
    )


@red("vit_qkv", profile="each_step", gate="exact", name="triton.in_registers", **TRITON)
def products_in_registers(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, q_weight: Any, k_weight: Any, *, eps: float
) -> Any:
    """Products are not rounded where their roundings are named."""
    return vit_qkv_triton(q, k, v, cos, sin, q_weight, k_weight, eps=eps, profile="two_step")


@red("vit_qkv", profile="two_step", gate="exact", name="triton.products_rounded", **TRITON)
def products_rounded(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, q_weight: Any, k_weight: Any, *, eps: float
) -> Any:
    """Products are rounded where one rounding is named."""
    return vit_qkv_triton(q, k, v, cos, sin, q_weight, k_weight, eps=eps, profile="each_step")
