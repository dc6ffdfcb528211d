"""Planted attention of int8 codes: accumulators, scales, grids, masks and heads as faulty kernels have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.attention import by_head, live_keys
from contract.kernels.sdpa_i8qk_fp16pv import (
    average,
    fp16_steps,
    scores_of,
    sdpa_i8qk_fp16pv_torch,
    softmax,
)
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("fp32_softmax", "each_op")
NAME = "sdpa_i8qk_fp16pv"


def masked_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    step: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
) -> torch.Tensor:
    """Scores with dead keys at -inf."""
    live = live_keys(k.shape[0], None, position, prefix, None, None)
    return scores_of(q, k, step).masked_fill(~live, -torch.inf)


# ---- codes and scales


@red(NAME, profile=BOTH, gate="exact")
def sums_in_sixteen_bits(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Sums of codes saturate at 32767 on their way."""
    live = live_keys(k.shape[0], None, position, prefix, None, None)
    products = q.transpose(0, 1)[:, :, None].int() * by_head(k, q.shape[1])[:, None].int()
    total = torch.zeros(products.shape[:-1], dtype=torch.int32)
    for column in products.unbind(-1):
        total = (total + column).clamp(-32768, 32767)
    scores = (total * (q_scale * k_scale * scale)).half().masked_fill(~live, -torch.inf)
    return average(fp16_steps(scores) if profile == "each_op" else softmax(scores), v)


@red(NAME, profile=BOTH, gate="exact")
def sums_in_fp16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Codes are multiplied and summed as fp16 numbers, eight at a time."""
    live = live_keys(k.shape[0], None, position, prefix, None, None)
    rows, keys = q.transpose(0, 1).float(), by_head(k, q.shape[1]).transpose(1, 2).float()
    total = torch.zeros(rows.shape[0], rows.shape[1], keys.shape[-1], dtype=torch.float16)
    for at in range(0, rows.shape[-1], 8):
        part = rows[..., at : at + 8] @ keys[:, at : at + 8]
        total = (total.float() + part).half()
    scores = (total.float() * (q_scale * k_scale * scale)).half().masked_fill(~live, -torch.inf)
    return average(fp16_steps(scores) if profile == "each_op" else softmax(scores), v)


@red(NAME, profile=BOTH, gate="exact")
def unsigned_codes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Codes of q are taken for unsigned ones: -1 is 255."""
    live = live_keys(k.shape[0], None, position, prefix, None, None)
    rows, keys = q.view(torch.uint8).transpose(0, 1).float(), by_head(k, q.shape[1]).float()
    scores = (rows @ keys.transpose(1, 2) * (q_scale * k_scale * scale)).half()
    scores = scores.masked_fill(~live, -torch.inf)
    return average(fp16_steps(scores) if profile == "each_op" else softmax(scores), v)


@red(NAME, profile=BOTH, gate="shapes")
def scale_of_q_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Scores are not multiplied with the value of a step of q."""
    one = torch.ones_like(q_scale)
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, one, k_scale, position, prefix, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def scale_of_the_head_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Scores are not multiplied with d^-1/2."""
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, q_scale, k_scale, position, prefix, scale=1.0, profile=profile
    )


# ---- weights and values


@red(NAME, profile=BOTH, gate="exact")
def weights_in_eight_bits(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Weights are codes of 1 / 127: of a thousand equal ones nothing is left."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix)
    return average((softmax(scores).float() * 127.0).round() / 127.0, v)


@red(NAME, profile=BOTH, gate="exact")
def small_weights_flushed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Weights below fp16's smallest normal number, 2^-14, are 0."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix)
    weights = fp16_steps(scores) if profile == "each_op" else softmax(scores)
    return average(weights.masked_fill(weights < 2.0**-14, 0.0), v)


@red(NAME, profile=BOTH, gate="exact")
def weights_in_bf16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Weights are rounded to 8 bits, not to 11."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix)
    return average(softmax(scores).bfloat16(), v)


@red(NAME, profile=BOTH, gate="exact")
def values_in_eight_bits(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The cache of v is int8, too."""
    step = v.float().abs().amax() / 127.0
    coarse = ((v.float() / step).round() * step).half()
    return sdpa_i8qk_fp16pv_torch(
        q, k, coarse, q_scale, k_scale, position, prefix, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def products_summed_in_fp16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """P v is accumulated in fp16, eight keys at a time."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix)
    weights = (fp16_steps(scores) if profile == "each_op" else softmax(scores)).float()
    values = by_head(v, q.shape[1]).float()
    total = torch.zeros_like(q.transpose(0, 1), dtype=torch.float16)
    for at in range(0, k.shape[0], 8):
        part = weights[..., at : at + 8] @ values[:, at : at + 8]
        total = (total.float() + part).half()
    return total.transpose(0, 1).contiguous()


@red(NAME, profile=BOTH, gate="shapes")
def maximum_not_subtracted(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Exponentials of the scores themselves overflow in fp16 above 11.09."""
    e = masked_scores(q, k, q_scale * k_scale * scale, position, prefix).float().exp().half()
    return average(e / e.float().sum(-1, keepdim=True).half(), v)


# ---- masks, heads and tails


@red(NAME, profile=BOTH, gate="exact")
def prefix_is_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The prefix sees only what is before it."""
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, q_scale, k_scale, position, prefix * 0, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def suffix_is_bidirectional(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """All keys are seen by all."""
    every = torch.full_like(prefix, k.shape[0])
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, q_scale, k_scale, position, every, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def prefix_one_too_long(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The first key after the prefix is seen by all of it."""
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, q_scale, k_scale, position, prefix + 1, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def own_key_not_seen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """A row of the suffix does not see its own key, unless there is no other."""
    before = torch.where(position > 0, position - 1, position)
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, q_scale, k_scale, before, prefix, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def heads_by_remainder(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """Query head h reads key head h mod kv."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat(1, groups, 1) for x in (k, v))
    return sdpa_i8qk_fp16pv_torch(
        q, k, v, q_scale, k_scale, position, prefix, scale=scale, profile=profile
    )


@red(NAME, profile=BOTH, gate="exact")
def last_key_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The last key of the cache is not read, unless it is the only one."""
    size = max(1, k.shape[0] - 1)
    return sdpa_i8qk_fp16pv_torch(
        q, k[:size], v[:size], q_scale, k_scale, position, prefix, scale=scale, profile=profile
    )


# ---- legal variants


@green(NAME, profile=BOTH)
def keys_in_reverse_order(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The sums run from the last key to the first."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix).flip(-1)
    return average(fp16_steps(scores) if profile == "each_op" else softmax(scores), v.flip(0))


@green(NAME, profile="fp32_softmax")
def softmax_in_float64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """The softmax's steps are kept wider."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix)
    return average(torch.softmax(scores.double(), dim=-1).float().half(), v)


@green(NAME, profile="each_op")
def multiplied_by_the_reciprocal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    position: torch.Tensor, prefix: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """Weights are multiplied by 1 / sum, in fp32."""
    scores = masked_scores(q, k, q_scale * k_scale * scale, position, prefix)
    e = (scores - scores.amax(-1, keepdim=True)).float().exp().half().float()
    return average((e * (1.0 / e.sum(-1, keepdim=True).half().float())).half(), v)
