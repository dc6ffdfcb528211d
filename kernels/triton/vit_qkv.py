"""Queries, keys and values of a vision tower: the four quarters of a head stay in registers from norm to turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import rounded, wide
from contract.kernels.triton.qk_rows import DEPTH, WARPS, unit_heads
from contract.kernels.triton.rms_norm import inverse_root
from contract.kernels.triton.rope import head_tile
from contract.kernels.triton.row_tiles import by_rows
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def square_sum(x: tl.tensor) -> tl.tensor:
    """Sum of the squares of each row of a tile, (HEADS, 1)."""
    return tl.sum(x * x, 1, keep_dims=True)


@jit
def turn_half(
    a: tl.tensor,
    b: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    target: tl.tensor,
    pair: tl.tensor,
    quarter: tl.tensor,
    inside: tl.tensor,
    EACH: tl.constexpr,
) -> None:
    """Gain, rotation and store of two quarters that turn with each other; pointers are those of the first one."""
    used = pair < quarter
    narrow = target.dtype.element_ty
    a = rounded(a * wide(weight + pair, used), True)
    b = rounded(b * wide(weight + quarter + pair, used), True)
    first = rounded(a * wide(cos + pair, used), EACH) - rounded(b * wide(sin + pair, used), EACH)
    cross = rounded(a * wide(sin + quarter + pair, used), EACH)
    second = rounded(b * wide(cos + quarter + pair, used), EACH) + cross
    tl.store(target + pair, first.to(narrow), mask=inside)
    tl.store(target + quarter + pair, second.to(narrow), mask=inside)


@jit
def vit_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    quarter: tl.tensor,
    row_stride: tl.tensor,
    head_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    EACH: tl.constexpr,
    HEADS: tl.constexpr,
    QUARTER: tl.constexpr,
) -> None:
    """HEADS heads of a patch: norm and gain, rounded; the halves are turned by column and by row."""
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, QUARTER)[None, :]
    inside = (head < heads) & (pair < quarter)
    source = x + row * row_stride + head * head_stride
    target = out + (row * heads + head) * 4 * quarter
    a, b = wide(source + pair, inside), wide(source + quarter + pair, inside)
    c, d = wide(source + 2 * quarter + pair, inside), wide(source + 3 * quarter + pair, inside)
    total = (square_sum(a) + square_sum(b)) + (square_sum(c) + square_sum(d))
    inverse = inverse_root(total * inverse_d + eps)
    a, b, c, d = a * inverse, b * inverse, c * inverse, d * inverse
    cos, sin, half = cos + row * cos_stride, sin + row * sin_stride, 2 * quarter
    turn_half(a, b, weight, cos, sin, target, pair, quarter, inside, EACH)
    turn_half(
        c, d, weight + half, cos + half, sin + half, target + half, pair, quarter, inside, EACH
    )


@implementation(
    "vit_qkv",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("each_step", "two_step"),
    order={"mean": DEPTH},
)
def vit_qkv_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    *,
    eps: float,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One launch each for q, k and v."""
    cos, sin = by_rows(cos), by_rows(sin)
    results = []
    for x, weight in ((by_rows(q), q_weight), (by_rows(k), k_weight)):
        rows, heads, d = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block, padded = head_tile(heads, d // 4, 512)
        vit_kernel[(rows, -(-heads // block))](
            x,
            weight,
            cos,
            sin,
            out,
            heads,
            d // 4,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            sin.stride(0),
            1.0 / d,
            eps,
            EACH=profile == "each_step",
            HEADS=block,
            QUARTER=padded,
            num_warps=WARPS,
        )
        results.append(out)
    return results[0], results[1], unit_heads(v, eps)
