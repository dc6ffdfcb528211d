"""Rotary embedding: both sides of a pair are loaded once, stored once, and turned in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import rounded
from contract.kernels.triton.row_tiles import by_rows, power_of_two
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

#: Pairs of one program, and its warps: 8 pairs a thread.
PAIRS, WARPS = 1024, 4


@jit
def turned(a: tl.tensor, b: tl.tensor, c: tl.tensor, s: tl.tensor, EACH: tl.constexpr) -> tl.tensor:
    """(a c - b s, b c + a s): EACH rounds the four products to bf16, else one of each two is fused with the sum."""
    if EACH:
        return (
            rounded(a * c, True) - rounded(b * s, True),
            rounded(b * c, True) + rounded(a * s, True),
        )
    else:
        return tl.math.fma(a, c, -(b * s)), tl.math.fma(b, c, a * s)


@jit
def rope_kernel(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    d: tl.tensor,
    run: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    SIDES: tl.constexpr,
    EACH: tl.constexpr,
    HEADS: tl.constexpr,
    RUN: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    """HEADS heads of a token. SIDES stretches of `run` pairs (i, i + run) follow each other, or 0: pairs (2 i, 2 i + 1).

    REST is the power of two that holds the dims after the rotary ones, 0 where there are none: they are moved as they are.
    """
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    source = x + token * token_stride + head * head_stride
    target = out + (token * heads + head) * d
    narrow = out.dtype.element_ty
    if SIDES == 0:
        dim = tl.arange(0, 2 * RUN)[None, :]
        pair = tl.arange(0, RUN)[None, :]
        inside = (head < heads) & (dim < 2 * run)
        both = tl.load(source + dim, mask=inside, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(both, (HEADS, RUN, 2)))
        c = tl.load(cos + token * cos_stride + pair, mask=pair < run, other=0.0).to(tl.float32)
        s = tl.load(sin + token * sin_stride + pair, mask=pair < run, other=0.0).to(tl.float32)
        first, second = turned(a, b, c, s, EACH)
        both = tl.reshape(tl.join(first, second), (HEADS, 2 * RUN))
        tl.store(target + dim, both.to(narrow), mask=inside)
    else:
        pair = tl.arange(0, RUN)[None, :]
        inside = (head < heads) & (pair < run)
        for side in tl.static_range(SIDES):
            at = side * 2 * run + pair
            a = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(source + at + run, mask=inside, other=0.0).to(tl.float32)
            entry = side * run + pair
            c = tl.load(cos + token * cos_stride + entry, mask=pair < run, other=0.0)
            s = tl.load(sin + token * sin_stride + entry, mask=pair < run, other=0.0)
            first, second = turned(a, b, c.to(tl.float32), s.to(tl.float32), EACH)
            tl.store(target + at, first.to(narrow), mask=inside)
            tl.store(target + at + run, second.to(narrow), mask=inside)
    if REST > 0:
        sides: tl.constexpr = 2 * SIDES if SIDES > 0 else 2
        dim = sides * run + tl.arange(0, REST)[None, :]
        inside = (head < heads) & (dim < d)
        tl.store(target + dim, tl.load(source + dim, mask=inside, other=0.0), mask=inside)


def head_tile(heads: int, run: int, pairs: int = PAIRS) -> tuple[int, int]:
    """(HEADS, RUN): as many heads as make a program of `pairs` pairs."""
    padded = power_of_two(run)
    return max(1, min(power_of_two(heads), pairs // padded)), padded


@implementation(
    "rope",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("each_op", "once", "float32"),
)
def rope_triton(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, pairing: str, profile: str
) -> torch.Tensor:
    """One launch; a program takes some heads of a token."""
    x, cos, sin = by_rows(x), by_rows(cos), by_rows(sin)
    tokens, heads, d = x.shape
    half = cos.shape[1]
    sides = {"halves": 1, "interleaved": 0, "by_axis": 2}[pairing]
    run = half // max(1, sides)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block, padded = head_tile(heads, run)
    rope_kernel[(tokens, -(-heads // block))](
        x,
        cos,
        sin,
        out,
        heads,
        d,
        run,
        x.stride(0),
        x.stride(1),
        cos.stride(0),
        sin.stride(0),
        SIDES=sides,
        EACH=profile == "each_op",
        HEADS=block,
        RUN=padded,
        REST=power_of_two(d - 2 * half) if d > 2 * half else 0,
        num_warps=WARPS,
    )
    return out
