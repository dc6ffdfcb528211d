"""Planted attention over caches: lengths, chunks and heads as faulty kernels have them, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.attention import BLOCK, online
from contract.kernels.decode_attention import chunked
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("running", "float32")

Pair = tuple["torch.Tensor", "torch.Tensor"]


@red("decode_attention", profile=BOTH, gate="exact")
def zero_times_nan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Unused slots have weight 0, and what they hold is multiplied by it."""
    rows, heads, d = q.shape
    query = q.reshape(rows, k.shape[2], -1, d).float()
    used = (torch.arange(k.shape[1]) < length[:, None])[:, None, None]
    parts = []
    for at in range(0, k.shape[1], BLOCK):
        here = slice(at, at + BLOCK)
        scores = query @ k[:, here].permute(0, 2, 3, 1).float() * scale
        parts.append((scores, v[:, here].transpose(1, 2), used[..., here]))
    out, lse = online(parts)
    return out.reshape(rows, heads, d).to(q.dtype), lse.reshape(rows, heads)


@red("decode_attention", profile=BOTH, gate="shapes")
def one_slot_too_many(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """The first unused slot is read."""
    return chunked(q, k, v, (length + 1).clamp(max=k.shape[1]), scale, BLOCK)


@red("decode_attention", profile=BOTH, gate="exact")
def last_slot_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """The newest slot is not read, unless it is the only one."""
    return chunked(q, k, v, torch.where(length > 1, length - 1, length), scale, BLOCK)


@red("decode_attention", profile=BOTH, gate="shapes")
def whole_cache_read(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """The length is not looked at."""
    return chunked(q, k, v, torch.full_like(length, k.shape[1]), scale, BLOCK)


@red("decode_attention", profile="float32", gate="stress")
@red("decode_attention", profile="running", gate="exact")
def last_chunk_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Only whole chunks are read, once there is one."""
    whole = length // BLOCK * BLOCK
    return chunked(q, k, v, torch.where(whole > 0, whole, length), scale, BLOCK)


@red("decode_attention", profile=BOTH, gate="exact")
def first_sequence_for_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """All sequences have the first one's length."""
    return chunked(q, k, v, length[:1].expand_as(length), scale, BLOCK)


@red("decode_attention", profile=BOTH, gate="exact")
def heads_by_remainder(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Query head h reads key head h mod kv."""
    groups = q.shape[1] // k.shape[2]
    return chunked(q, k.repeat(1, 1, groups, 1), v.repeat(1, 1, groups, 1), length, scale, BLOCK)


@red("decode_attention", profile="running", gate="exact")
def chunks_of_sixty_four(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Weights are rounded against the maximum of 64 slots."""
    return chunked(q, k, v, length, scale, 64)


@red("decode_attention", profile="float32", gate="shapes")
@red("decode_attention", profile="running", gate="exact")
def scale_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Scores are not scaled."""
    return chunked(q, k, v, length, 1.0, BLOCK)


@red("decode_attention", profile=BOTH, gate="stress")
def empty_cache_is_nan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """0 / 0 where no slot is used."""
    out, lse = chunked(q, k, v, length, scale, BLOCK)
    return out.masked_fill((length == 0)[:, None, None], torch.nan), lse


@red("decode_attention", profile=BOTH, gate="stress")
def empty_cache_has_a_log_sum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """The log-sum-exp of nothing is 0: merged, an empty part weighs something."""
    out, lse = chunked(q, k, v, length, scale, BLOCK)
    return out, lse.masked_fill((length == 0)[:, None], 0.0)


@red("decode_attention", profile=BOTH, gate="shapes")
def log_sum_in_base_two(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """log2 where the natural logarithm is meant."""
    out, lse = chunked(q, k, v, length, scale, BLOCK)
    return out, lse / 0.6931472


@red("decode_attention", profile="float32", gate="shapes")
def cache_in_bf16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Keys and values have been stored in bf16."""
    return chunked(q, k.bfloat16().float(), v.bfloat16().float(), length, scale, BLOCK)


@red("decode_attention", profile="float32", gate="shapes")
def weights_in_bf16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Weights are rounded as in the bf16 kernel."""
    out, lse = chunked(q, k, v.bfloat16(), length, scale, BLOCK)
    return out, lse


@red("decode_attention", profile="float32", gate="exact")
def stored_in_bf16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """The result goes through bf16."""
    out, lse = chunked(q, k, v, length, scale, BLOCK)
    return out.bfloat16().float(), lse


@green("decode_attention", profile="float32")
def chunks_of_thirty_two(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """Where no weight is rounded, chunks may be as small as one likes."""
    return chunked(q, k, v, length, scale, 32)


@green("decode_attention", profile="float32")
def divided_first(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """torch's softmax, whose weights are divided before they meet v."""
    groups = q.shape[1] // k.shape[2]
    used = torch.arange(k.shape[1]) < length[:, None]
    values = v.masked_fill(~used[..., None, None], 0.0)
    keys, values = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (k, values))
    scores = (keys @ q[..., None])[..., 0] * scale
    weights = torch.softmax(scores.masked_fill(~used[:, None], -torch.inf), -1)
    weights = weights.masked_fill((length == 0)[:, None, None], 0.0)
    return (weights[..., None, :] @ values)[..., 0, :]


@green("decode_attention", profile=BOTH)
def heads_repeated(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> Pair:
    """A copy of the key head for each query head."""
    groups = q.shape[1] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2) for x in (k, v))
    return chunked(q, k, v, length, scale, BLOCK)


@green("decode_attention", profile=BOTH)
def one_sequence_at_a_time(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """Each cache is cut to its length first."""
    rows = []
    for i, n in enumerate(length.tolist()):
        here = slice(i, i + 1)
        size = max(1, n)
        rows.append(chunked(q[here], k[here, :size], v[here, :size], length[here], scale, BLOCK)[0])
    return torch.cat(rows)
