"""Planted attention with weights in two halves: halves, chunks, merges and stretches as faulty kernels have them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels import attention_p32 as own
from contract.kernels.attention import BLOCK, by_head, live_keys
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

NAME = "attention_p32"


def seen(k: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return live_keys(k.shape[0], first, last, None, None, None)


def parts_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, live: torch.Tensor, scale: float
) -> list[Any]:
    """The parts of all chunks."""
    heads, size = q.shape[1], BLOCK
    keys, values, rows = by_head(k, heads), by_head(v, heads).float(), q.transpose(0, 1).float()
    scores = (rows @ keys.transpose(1, 2).float() * scale).masked_fill(~live, -torch.inf)
    return [
        own.chunk(scores[..., at : at + size], values[:, at : at + size])
        for at in range(0, k.shape[0], size)
    ]


def with_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    scale: float,
    rounded: Any,
) -> torch.Tensor:
    """Attention against each chunk's maximum whose weights are `rounded` in some other way."""
    heads, state = q.shape[1], None
    keys, values, rows = by_head(k, heads), by_head(v, heads).float(), q.transpose(0, 1).float()
    for at in range(0, k.shape[0], BLOCK):
        here = slice(at, at + BLOCK)
        scores = rows @ keys[:, here].transpose(1, 2).float() * scale
        scores = scores.masked_fill(~live[:, here], -torch.inf)
        top = scores.amax(-1, keepdim=True)
        e = torch.exp(scores - own.finite(top))
        part = top, e.sum(-1, keepdim=True), rounded(e) @ values[:, here]
        state = part if state is None else own.merged(state, part)
    assert state is not None
    return own.ended(state, q.dtype)[0]


@red(NAME, profile="halves", gate="exact")
def low_half_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Weights are bf16."""
    return with_weights(q, k, v, seen(k, first, last), scale, lambda e: e.bfloat16().float())


@red(NAME, profile="halves", gate="exact")
def low_half_added_to_high(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Both halves are added in bf16 before they meet v: the low one is lost."""
    halves = seen(k, first, last)
    return with_weights(
        q, k, v, halves, scale,
        lambda e: (e.bfloat16() + (e - e.bfloat16().float()).bfloat16()).float(),
    )  # fmt: skip


@red(NAME, profile="halves", gate="exact")
def low_half_of_a_truncated_high(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """The high half is cut off, the low one is the rest of the rounded one."""

    def cut(e: torch.Tensor) -> torch.Tensor:
        high = (e.view(torch.int32) & -65536).view(torch.float32)
        return high + (e - e.bfloat16().float()).bfloat16().float()

    return with_weights(q, k, v, seen(k, first, last), scale, cut)


@red(NAME, profile="halves", gate="exact")
def weights_in_fp16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Weights keep 11 bits, not 16."""
    return with_weights(q, k, v, seen(k, first, last), scale, lambda e: e.half().float())


@red(NAME, profile="halves", gate="exact")
def key_after_the_last_is_seen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """One key too many at the end."""
    return own.in_chunks(q, k, v, seen(k, first, last + 1), scale)


@red(NAME, profile="halves", gate="exact")
def first_key_is_not_seen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """One key too few at the beginning, where more than one is live."""
    later = torch.where(first < last, first + 1, first)
    return own.in_chunks(q, k, v, seen(k, later, last), scale)


@red(NAME, profile="halves", gate="exact")
def last_chunk_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Only whole chunks are read, once there is one."""
    size = k.shape[0] // BLOCK * BLOCK or max(1, k.shape[0] - 1)
    return own.in_chunks(q, k[:size], v[:size], seen(k[:size], first, last), scale)


@red(NAME, profile="halves", gate="exact")
def heads_by_remainder(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Query head h reads key head h mod kv."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat(1, groups, 1) for x in (k, v))
    return own.in_chunks(q, k, v, seen(k, first, last), scale)


@red(NAME, profile="halves", gate="exact")
def scale_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Scores are not scaled."""
    return own.in_chunks(q, k, v, seen(k, first, last), 1.0)


@red(NAME, profile="halves", gate="exact")
def merged_without_rescaling(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Parts are added as if their maxima were one."""
    parts = parts_of(q, k, v, seen(k, first, last), scale)
    top = torch.stack([part[0] for part in parts]).amax(0)
    return own.ended((top, sum(p[1] for p in parts), sum(p[2] for p in parts)), q.dtype)[0]


@red(NAME, profile="halves", gate="exact")
def merged_in_base_two(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Log-sum-exps of base two are merged by exp."""
    states = [
        (torch.nan_to_num(top + total.log(), neginf=-torch.inf) / math.log(2.0), out / total.clamp(min=1e-30))
        for top, total, out in parts_of(q, k, v, seen(k, first, last), scale)
    ]  # fmt: skip
    best = torch.stack([lse for lse, _ in states]).amax(0)
    weights = [torch.exp(lse - own.finite(best)) for lse, _ in states]
    total: Any = sum(weights)
    out = sum(w * o for w, (_, o) in zip(weights, states, strict=True))
    return own.ended((best, total, out), q.dtype)[0]


@red(NAME, profile="halves", gate="shapes")
def empty_parts_make_nan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Two parts without a live key are merged over -inf - -inf."""
    out, lse = own.in_chunks(q, k, v, seen(k, first, last), scale)
    return out + (lse - lse)[..., None].to(out.dtype), lse


@red(NAME, profile="halves", gate="shapes")
def log_sum_exp_in_base_two(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """The stage is log2 where the natural logarithm is meant."""
    out, lse = own.in_chunks(q, k, v, seen(k, first, last), scale)
    return out, lse / math.log(2.0)


@red(NAME, profile="halves", gate="stress")
def empty_row_has_a_log_sum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """The log-sum-exp of nothing is 0: merged, an empty part weighs something."""
    out, lse = own.in_chunks(q, k, v, seen(k, first, last), scale)
    return out, lse.masked_fill((first > last)[:, None], 0.0)


@green(NAME, profile="halves")
def one_product_of_both_halves(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Halves are added in fp32, which holds both."""
    return with_weights(
        q, k, v, seen(k, first, last), scale,
        lambda e: e.bfloat16().float() + (e - e.bfloat16().float()).bfloat16().float(),
    )  # fmt: skip


@green(NAME, profile="halves")
def merged_from_the_last(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, last: torch.Tensor, *,
    scale: float,
) -> Any:  # fmt: skip
    """Chunks are merged from the last one to the first."""
    state, *rest = parts_of(q, k, v, seen(k, first, last), scale)[::-1]
    for part in rest:
        state = own.merged(state, part)
    return own.ended(state, q.dtype)
