"""Norm and rotation of queries and keys: a head's two sides stay in registers between its norm and its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.element_tiles import rounded, wide
from contract.kernels.triton.rms_norm import inverse_rms, inverse_root
from contract.kernels.triton.rope import head_tile, turned
from contract.kernels.triton.row_tiles import by_rows, power_of_two
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

WARPS = 4
#: Most additions of a term of a head's sum, d <= 1,024: 15 of a thread's values and 5 shuffles and 2 steps over 4 warps in
#: one of three sums, and two to add those.
DEPTH = 15 + 5 + 2 + 2


@jit
def gained(
    side: tl.tensor,
    inverse: tl.tensor,
    weight: tl.tensor,
    inside: tl.tensor,
    PLUS: tl.constexpr,
    NORMED: tl.constexpr,
    GAINED: tl.constexpr,
) -> tl.tensor:
    """A side of the head normed and times its gain; NORMED and GAINED round at the points of those names."""
    gain = wide(weight, inside)
    if PLUS:
        gain = 1.0 + gain
    return rounded(rounded(side * inverse, NORMED) * gain, GAINED)


@jit
def qk_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    d: tl.tensor,
    half: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    PLUS: tl.constexpr,
    NORMED: tl.constexpr,
    GAINED: tl.constexpr,
    EACH: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    """HEADS heads of a token: pairs (i, i + half) are turned; REST holds the dims after them, normed and gained only."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    source = x + token * token_stride + head * head_stride
    target = out + (token * heads + head) * d
    narrow = out.dtype.element_ty
    pair = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    a, b = wide(source + pair, inside), wide(source + half + pair, inside)
    total = tl.sum(a * a, 1, keep_dims=True) + tl.sum(b * b, 1, keep_dims=True)
    if REST > 0:
        dim = 2 * half + tl.arange(0, REST)[None, :]
        beyond = (head < heads) & (dim < d)
        rest = wide(source + dim, beyond)
        total = total + tl.sum(rest * rest, 1, keep_dims=True)
    inverse = inverse_root(total * inverse_d + eps)
    a = gained(a, inverse, weight + pair, pair < half, PLUS, NORMED, GAINED)
    b = gained(b, inverse, weight + half + pair, pair < half, PLUS, NORMED, GAINED)
    c = wide(cos + token * cos_stride + pair, pair < half)
    s = wide(sin + token * sin_stride + pair, pair < half)
    first, second = turned(a, b, c, s, EACH)
    tl.store(target + pair, first.to(narrow), mask=inside)
    tl.store(target + half + pair, second.to(narrow), mask=inside)
    if REST > 0:
        rest = gained(rest, inverse, weight + dim, dim < d, PLUS, NORMED, GAINED)
        tl.store(target + dim, rest.to(narrow), mask=beyond)


@jit
def unit_kernel(
    x: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    d: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    inverse_d: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """HEADS heads of a token, normed and rounded once."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dim = tl.arange(0, BLOCK)[None, :]
    inside = (head < heads) & (dim < d)
    value = wide(x + token * token_stride + head * head_stride + dim, inside)
    inverse = inverse_rms(value, inverse_d, eps)
    target = out + (token * heads + head) * d + dim
    tl.store(target, (value * inverse).to(out.dtype.element_ty), mask=inside)


def unit_heads(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) of each head, rounded once."""
    x = by_rows(x)
    tokens, heads, d = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block, padded = head_tile(heads, d, 2048)
    unit_kernel[(tokens, -(-heads // block))](
        x,
        out,
        heads,
        d,
        x.stride(0),
        x.stride(1),
        1.0 / d,
        eps,
        HEADS=block,
        BLOCK=padded,
        num_warps=WARPS,
    )
    return out


@implementation(
    "qk_rows",
    name="triton",
    engine="ptx",
    requires=("triton",),
    profile=("each_op", "two_step", "norm", "once"),
    order={"mean": DEPTH},
)
def qk_rows_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    v: torch.Tensor | None = None,
    *,
    eps: float,
    gain: str,
    profile: str,
) -> tuple[torch.Tensor, ...]:
    """One launch for q, one for k, one for v where it is there."""
    cos, sin = by_rows(cos), by_rows(sin)
    half = cos.shape[1]
    results = []
    for x, weight in ((by_rows(q), q_weight), (by_rows(k), k_weight)):
        tokens, heads, d = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        # by the whole head: what is not turned is held in registers, too
        block, _ = head_tile(heads, d, 2048)
        qk_kernel[(tokens, -(-heads // block))](
            x,
            weight,
            cos,
            sin,
            out,
            heads,
            d,
            half,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            sin.stride(0),
            1.0 / d,
            eps,
            PLUS=gain == "1+w",
            NORMED=profile == "two_step",
            GAINED=profile != "once",
            EACH=profile in ("each_op", "two_step"),
            HEADS=block,
            HALF=power_of_two(half),
            REST=power_of_two(d - 2 * half) if d > 2 * half else 0,
            num_warps=WARPS,
        )
        results.append(out)
    if v is not None:
        results.append(unit_heads(v, eps))
    return tuple(results)
