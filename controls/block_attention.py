"""Planted attention of drafted blocks: masks, positions, slots and heads as faulty kernels have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.block_attention import attend, block_attention_torch, joined, live_keys
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

NAME = "block_attention"
BOTH = ("running", "eager")


def seen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, live: torch.Tensor, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Attention to the keys that a mask of its own lets through."""
    keys, values = (joined(x, y, length, q.shape[2]) for x, y in ((k, own_k), (v, own_v)))
    return attend(q, keys, values, live, scale, profile)


# ---- masks and positions


@red(NAME, profile=BOTH, gate="exact", mask="full")
def block_is_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Rows of the block do not see those after them, where the layer is not causal."""
    slots = k.shape[1]
    live = live_keys(slots, q.shape[1], length, None).clone()
    live[:, :, slots:] &= torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    return seen(q, k, v, own_k, own_v, length, live, scale, profile)


@red(NAME, profile="running", gate="exact", mask="sliding")
def block_is_bidirectional(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Rows of the block see those after them, where the layer is causal."""
    slots = k.shape[1]
    live = live_keys(slots, q.shape[1], length, window).clone()
    ahead = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu()
    live[:, :, slots:] |= ahead
    return seen(q, k, v, own_k, own_v, length, live, scale, profile)


@red(NAME, profile="running", gate="exact", mask="sliding")
def window_one_too_wide(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """W keys besides the query's own."""
    return block_attention_torch(
        q, k, v, own_k, own_v, length, window + 1, scale=scale, profile=profile
    )


@red(NAME, profile="running", gate="exact", mask="sliding")
def window_one_too_narrow(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """W - 1 keys, the query's own among them, or its own alone."""
    less = (window - 1).clamp(min=1)
    return block_attention_torch(q, k, v, own_k, own_v, length, less, scale=scale, profile=profile)


@red(NAME, profile="running", gate="exact", mask="sliding")
def window_in_the_context_alone(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Keys of the block are seen however far they lie behind."""
    slots = k.shape[1]
    live = live_keys(slots, q.shape[1], length, window).clone()
    live[:, :, slots:] |= torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    return seen(q, k, v, own_k, own_v, length, live, scale, profile)


@red(NAME, profile="running", gate="exact", mask="sliding")
def window_from_the_first_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """All rows of the block have the window of the first one."""
    slots = k.shape[1]
    live = live_keys(slots, q.shape[1], length, window).clone()
    live[:, :, :slots] = live[:, :1, :slots]
    return seen(q, k, v, own_k, own_v, length, live, scale, profile)


@red(NAME, profile="running", gate="exact", mask="sliding")
def block_behind_all_slots(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The block's positions count unused slots, too."""
    slots = k.shape[1]
    live = live_keys(slots, q.shape[1], torch.full_like(length, slots), window)
    used = torch.arange(slots + q.shape[1]) < length[:, None]
    used[:, slots:] = True
    return seen(q, k, v, own_k, own_v, length, live & used[:, None], scale, profile)


# ---- context, block and slots


@red(NAME, profile=BOTH, gate="exact", mask="full")
def context_not_read(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The block sees itself alone."""
    return block_attention_torch(q, k, v, own_k, own_v, length * 0, scale=scale, profile=profile)


@red(NAME, profile=BOTH, gate="exact", mask="full")
def block_not_read(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The block sees its context and each row itself alone."""
    slots = k.shape[1]
    live = live_keys(slots, q.shape[1], length, None).clone()
    live[:, :, slots:] = torch.eye(q.shape[1], dtype=torch.bool)
    return seen(q, k, v, own_k, own_v, length, live, scale, profile)


@red(NAME, profile=BOTH, gate="exact", mask="full")
def last_slot_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The newest slot of the context is not read."""
    return block_attention_torch(
        q, k, v, own_k, own_v, (length - 1).clamp(min=0), scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="shapes", mask="full")
def one_slot_too_many(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The first unused slot is read."""
    more = (length + 1).clamp(max=k.shape[1])
    return block_attention_torch(q, k, v, own_k, own_v, more, scale=scale, profile=profile)


@red(NAME, profile=BOTH, gate="exact", mask="full")
def zero_times_nan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Unused slots have weight 0, and what they hold is multiplied by it."""
    every = torch.full_like(length, k.shape[1])
    keys, values = (joined(x, y, every, q.shape[2]) for x, y in ((k, own_k), (v, own_v)))
    live = live_keys(k.shape[1], q.shape[1], length, None)
    return attend(q, keys, values, live, scale, profile)


@red(NAME, profile=BOTH, gate="exact", mask="full")
def first_sequence_for_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """All sequences have the first one's length."""
    return block_attention_torch(
        q, k, v, own_k, own_v, length[:1].expand_as(length), scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact", mask="full")
def values_of_the_block_are_its_keys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The block's keys are read where its values are."""
    return block_attention_torch(q, k, v, own_k, own_k, length, scale=scale, profile=profile)


@red(NAME, profile=BOTH, gate="exact", mask="full")
def heads_by_remainder(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Query head h reads key head h mod kv."""
    groups = q.shape[2] // k.shape[2]
    k, v, own_k, own_v = (x.repeat(1, 1, groups, 1) for x in (k, v, own_k, own_v))
    return block_attention_torch(q, k, v, own_k, own_v, length, scale=scale, profile=profile)


@red(NAME, profile=BOTH, gate="exact", mask="full")
def scale_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Scores are not scaled."""
    return block_attention_torch(q, k, v, own_k, own_v, length, scale=1.0, profile=profile)


# ---- legal variants


@green(NAME, profile=BOTH, mask="full")
def one_sequence_at_a_time(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Each context is cut to its length first, unless that moves the chunks."""
    rows = []
    for i, n in enumerate(length.tolist()):
        here, size = slice(i, i + 1), max(1, n) if k.shape[1] + q.shape[1] <= 256 else k.shape[1]
        parts = k[here, :size], v[here, :size], own_k[here], own_v[here], length[here]
        rows.append(block_attention_torch(q[here], *parts, scale=scale, profile=profile))
    return torch.cat(rows)


@green(NAME, profile="running", mask="sliding")
def sums_in_float64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own_k: torch.Tensor, own_v: torch.Tensor,
    length: torch.Tensor, window: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Products are summed wider, and rounded to fp32 once."""
    keys, values = (joined(x, y, length, q.shape[2]).double() for x, y in ((k, own_k), (v, own_v)))
    scores = (q.transpose(1, 2).double() @ keys.transpose(2, 3)).float() * scale
    live = live_keys(k.shape[1], q.shape[1], length, window)[:, None]
    scores = scores.masked_fill(~live, -torch.inf)
    # one chunk: what is longer is left to the implementation
    if scores.shape[-1] > 256:
        return block_attention_torch(
            q, k, v, own_k, own_v, length, window, scale=scale, profile=profile
        )
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = (e.to(q.dtype).double() @ values).float() / e.sum(-1, keepdim=True)
    return out.to(q.dtype).transpose(1, 2).contiguous()
