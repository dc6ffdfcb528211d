"""Planted attention: masks, head maps, fills and weights as faulty kernels have them, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.attention import (
    BLOCK,
    TORCH_BLOCK,
    attention_eager,
    attention_online,
    attention_sdpa,
    by_head,
    live_keys,
    online,
)
from contract.kernels.clients.transformers_attention import call
from contract.kernels.clients.transformers_norms import NEEDS
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    scale: float,
    *,
    fill: float = float("-inf"),
    rounded: bool = True,
) -> torch.Tensor:
    """Attention over these live keys; dead scores hold `fill`, and weights are rounded or not."""
    heads, dtype = q.shape[1], q.dtype
    scores = (q.transpose(0, 1).float() @ by_head(k, heads).transpose(1, 2).float()).to(dtype)
    scores = (scores * scale).masked_fill(~live, fill)
    if fill == float("-inf"):
        scores = scores.masked_fill(~live.any(-1, keepdim=True), 0.0)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    weights = weights.to(dtype).float() if rounded else weights
    return (weights @ by_head(v, heads).float()).to(dtype).transpose(0, 1).contiguous()


#: What 2^f - 1 falls short of f, highest power first: as ATen has it, and with one power less.
CUBIC = (-0.079204240219773236, -0.22433836478672356, 0.30354260500649682, 0.00010703434948458272)
QUADRATIC = (-0.34266, 0.35057, -0.00376)


def fused(profile: str) -> Any:
    """The implementation of one of the profiles whose weights are exponentials."""
    return attention_online if profile == "flash" else attention_sdpa


def keys_at_a_time(profile: str) -> int:
    return BLOCK if profile == "flash" else TORCH_BLOCK


def in_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    scale: float,
    block: int,
    *,
    exp: Any = None,
    rounded: bool = True,
    rounded_sums: bool = False,
    rescaled: bool = True,
) -> torch.Tensor:
    """Blocks of keys with a running maximum: the weights' exponential, their rounding and the rescaling may be others."""
    heads, exp = q.shape[1], exp or torch.exp
    rows, keys, values = q.transpose(0, 1).float(), by_head(k, heads).float(), by_head(v, heads)
    top = torch.full((*rows.shape[:2], 1), -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(rows)
    for at in range(0, k.shape[0], block):
        here = slice(at, at + block)
        scores = (rows @ keys[:, here].transpose(1, 2) * scale).masked_fill(
            ~live[:, here], -torch.inf
        )
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        base = new.masked_fill(new == -torch.inf, 0.0)
        weights = exp(scores - base)
        narrow = weights.to(v.dtype).float()
        factor = torch.exp(top - base) if rescaled else 1.0
        total = total * factor + (narrow if rounded_sums else weights).sum(-1, keepdim=True)
        out = out * factor + (narrow if rounded else weights) @ values[:, here].float()
        top = new
    out = torch.where(total == 0, 0.0, out / torch.where(total == 0, 1.0, total))
    return out.to(q.dtype).transpose(0, 1).contiguous()


def fast_exponential(x: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    """2^n (1 + f) read as 2^(n + f - c(f)): a polynomial of the fraction is subtracted from the exponent's bits."""
    power = x * 1.4426950408889634
    fraction = power - power.floor()
    correction = torch.zeros_like(x)
    for c in coefficients:
        correction = correction * fraction + c
    bits = ((power - correction + 127.0) * 2.0**23).clamp(min=0.0).nan_to_num(0.0).to(torch.int32)
    return torch.where(x < -87.0, 0.0, bits.view(torch.float32))


# ---- masks


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def causal_one_too_many(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """The key after the query's own is seen."""
    return eager(q, k, v, live_keys(k.shape[0], start, position + 1, None, None, None), scale)


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def causal_one_too_few(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """A query does not see its own key."""
    return eager(q, k, v, live_keys(k.shape[0], start, position - 1, None, None, None), scale)


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def diagonal_from_the_first_key(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Query i of the call sees keys 0 .. i, wherever it stands in its sequence."""
    own = torch.arange(len(position), dtype=position.dtype).clamp(max=k.shape[0] - 1)
    return eager(q, k, v, live_keys(k.shape[0], start, own, None, None, None), scale)


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def padding_is_seen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Keys before the first one are not masked."""
    return eager(q, k, v, live_keys(k.shape[0], start * 0, position, None, None, None), scale)


@red("attention", profile="eager", gate="exact", mask="image_block")
def window_one_too_wide(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, block: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """W keys besides the query's own."""
    return eager(q, k, v, live_keys(k.shape[0], start, position, None, window + 1, block), scale)


@red("attention", profile="eager", gate="exact", mask="image_block")
def window_one_too_narrow(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, block: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """W - 1 keys, the query's own among them."""
    return eager(q, k, v, live_keys(k.shape[0], start, position, None, window - 1, block), scale)


@red("attention", profile="eager", gate="exact", mask="image_block")
def image_is_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, block: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """Rows of an image do not see those after them."""
    return eager(q, k, v, live_keys(k.shape[0], start, position, None, window, None), scale)


@red("attention", profile="eager", gate="exact", mask="image_block")
def image_sees_its_whole_block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, block: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """Keys of the own image are seen even where they left the window."""
    live = live_keys(k.shape[0], start, position, None, window, None)
    inside = live_keys(k.shape[0], start, position, None, None, block)
    own = block[position.long()][:, None]
    return eager(q, k, v, live | (inside & (own == block) & (own != 0)), scale)


@red("attention", profile="eager", gate="exact", mask="image_block")
def text_is_an_image(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, block: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """Text, whose number is 0, sees all other text."""
    return eager(q, k, v, live_keys(k.shape[0], start, position, None, window, block + 1), scale)


@red("attention", profile=("flash", "sdpa"), gate="exact", mask="prefix")
def prefix_is_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The prefix sees only what is before it."""
    return fused(profile)(q, k, v, start, position, scale=scale)


@red("attention", profile=("flash", "sdpa"), gate="exact", mask="prefix")
def prefix_one_too_long(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    prefix: torch.Tensor, *, scale: float, profile: str,
) -> Any:  # fmt: skip
    """The first key after the prefix is seen by all of it."""
    return fused(profile)(q, k, v, start, position, prefix + 1, scale=scale)


# ---- fills and empty rows


@red("attention", profile="eager", gate="stress", mask="causal")
def fill_of_minus_ten_thousand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Live scores may lie below the fill, and dead keys then take all the weight."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return eager(q, k, v, live, scale, fill=-1e4)


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def fill_of_minus_nine(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """A mask in the units of ordinary scores leaks."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return eager(q, k, v, live, scale, fill=-9.0)


@red("attention", profile=("flash", "sdpa"), gate="stress", mask="prefix")
def infinity_minus_infinity(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
    *,
    scale: float,
    profile: str,
) -> Any:
    """A row without a live key subtracts its maximum from itself."""
    given = fused(profile)(q, k, v, start, position, prefix, scale=scale)
    out = given[0] if isinstance(given, tuple) else given
    none = ~live_keys(k.shape[0], start, position, prefix, None, None).any(-1)
    return {"out": out.masked_fill(none[:, None, None], torch.nan)}


@red("attention", profile="eager_capped", gate="exact", mask="sliding", capped="yes")
def mask_before_the_cap(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, cap: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """A dead score is capped to -cap."""
    live = live_keys(k.shape[0], start, position, None, window, None)
    heads, dtype = q.shape[1], q.dtype
    scores = (q.transpose(0, 1).float() @ by_head(k, heads).transpose(1, 2).float()).to(dtype)
    scores = (scores * scale).masked_fill(~live, -torch.inf)
    scores = torch.tanh(scores / float(cap)) * float(cap)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
    return (weights.float() @ by_head(v, heads).float()).to(dtype).transpose(0, 1).contiguous()


@red("attention", profile="eager_capped", gate="exact", mask="sliding", capped="yes")
def cap_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor,
    window: torch.Tensor, cap: torch.Tensor, *, scale: float,
) -> Any:  # fmt: skip
    """Scores are not capped."""
    return attention_eager(q, k, v, start, position, window=window, scale=scale)


# ---- heads, tails and slots


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def heads_by_remainder(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, position: torch.Tensor, *,
    scale: float, profile: str,
) -> Any:  # fmt: skip
    """Query head h reads key head h mod kv."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, groups, 1), v.repeat(1, groups, 1)
    return attention_eager(q, k, v, start, position, scale=scale)


@red("attention", profile=("eager", "float32"), gate="exact", mask="causal")
def first_key_head_for_all(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """All query heads read the first key head."""
    return attention_eager(q, k[:, :1], v[:, :1], start, position, scale=scale)


@red("attention", profile=("flash", "sdpa"), gate="exact", mask="full")
def last_key_dropped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *,
    scale: float, profile: str,
) -> Any:  # fmt: skip
    """The tail of the last block is not read."""
    size = max(1, k.shape[0] - 1)
    return fused(profile)(q, k[:size], v[:size], start, scale=scale)


@red("attention", profile=("flash", "sdpa"), gate="exact", mask="full")
def stale_slot_read(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *,
    scale: float, profile: str,
) -> Any:  # fmt: skip
    """A block is filled up with the key of the slot before it."""
    return fused(profile)(q, torch.cat([k, k[:1]]), torch.cat([v, v[:1]]), start, scale=scale)


# ---- scores, weights and sums


@red("attention", profile="float32", gate="shapes", mask="causal")
@red("attention", profile="eager", gate="exact", mask="causal")
def scale_dropped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Scores are not scaled."""
    return attention_eager(q, k, v, start, position, scale=1.0)


@red("attention", profile="eager", gate="exact", mask="causal")
def weights_not_rounded(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Weights meet v in fp32."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return eager(q, k, v, live, scale, rounded=False)


@red("attention", profile="eager", gate="exact", mask="causal")
def weights_in_eight_bits(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Weights are codes of 1 / 127: small ones vanish."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    heads, dtype = q.shape[1], q.dtype
    scores = (q.transpose(0, 1).float() @ by_head(k, heads).transpose(1, 2).float()).to(
        dtype
    ) * scale
    scores = scores.masked_fill(~live, -torch.inf).masked_fill(~live.any(-1, keepdim=True), 0.0)
    weights = (torch.softmax(scores.float(), dim=-1) * 127.0).round() / 127.0
    return (weights @ by_head(v, heads).float()).to(dtype).transpose(0, 1).contiguous()


@red("attention", profile="eager", gate="exact", mask="causal")
def sums_in_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """P v is accumulated in bf16, 8 keys at a time."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    heads, dtype = q.shape[1], q.dtype
    scores = (q.transpose(0, 1).float() @ by_head(k, heads).transpose(1, 2).float()).to(
        dtype
    ) * scale
    scores = scores.masked_fill(~live, -torch.inf).masked_fill(~live.any(-1, keepdim=True), 0.0)
    weights = torch.softmax(scores.float(), dim=-1).to(dtype)
    total = torch.zeros_like(q.transpose(0, 1))
    for at in range(0, k.shape[0], 8):
        part = weights[..., at : at + 8].float() @ by_head(v, heads)[:, at : at + 8].float()
        total = (total.float() + part).to(dtype)
    return total.transpose(0, 1).contiguous()


@red("attention", profile=("flash", "sdpa"), gate="exact", mask="prefix")
def rescaling_forgotten(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
    *,
    scale: float,
    profile: str,
) -> Any:
    """What earlier blocks gave is kept when the maximum grows."""
    live = live_keys(k.shape[0], start, position, prefix, None, None)
    return in_blocks(q, k, v, live, scale, keys_at_a_time(profile), rescaled=False)


@red("attention", profile="flash", gate="shapes", mask="prefix")
def log_sum_exp_in_base_two(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """The stage is log2 where the natural logarithm is meant."""
    out, lse = attention_online(q, k, v, start, position, prefix, scale=scale)
    return out, lse / 0.6931472


# ---- torch's fused kernel


@red("attention", profile="sdpa", gate="exact", mask="full")
def blocks_of_256(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """Another fused kernel: weights are rounded against the maximum of fewer keys."""
    return {"out": attention_online(q, k, v, start, scale=scale)[0]}


@red("attention", profile="sdpa", gate="exact", mask="full")
def final_maximum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """Two passes over the keys: weights are rounded against the row's maximum."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(q, k, v, live, scale, k.shape[0])


@red("attention", profile="sdpa", gate="exact", mask="full")
def exponential_in_bf16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """The argument of the exponential is rounded to bf16."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(q, k, v, live, scale, TORCH_BLOCK, exp=lambda x: x.bfloat16().float().exp())


@red("attention", profile="sdpa", gate="exact", mask="full")
def quadratic_exponential(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """A fast exponential whose polynomial is of one degree less."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(
        q, k, v, live, scale, TORCH_BLOCK, exp=lambda x: fast_exponential(x, QUADRATIC)
    )  # fmt: skip


@red("attention", profile="sdpa", gate="exact", mask="full")
def sum_of_rounded_weights(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """The sum takes the weights as they meet v."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(q, k, v, live, scale, TORCH_BLOCK, rounded_sums=True)


@red("attention", profile="sdpa", gate="exact", mask="full")
def weights_in_float32(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """Weights meet v unrounded."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(q, k, v, live, scale, TORCH_BLOCK, rounded=False)


@red("attention", profile="sdpa", gate="exact", mask="full")
def additive_mask_of_minus_nine(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """A mask in the units of ordinary scores leaks."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    query, key, value = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=torch.where(live, 0.0, -9.0).to(q.dtype), scale=scale, enable_gqa=True
    )  # fmt: skip
    return out[0].transpose(0, 1).contiguous()


@red("attention", profile="sdpa", gate="exact", mask="full")
def key_heads_by_remainder(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """Query head h reads key head h mod kv."""
    groups = q.shape[1] // k.shape[1]
    return attention_sdpa(q, k.repeat(1, groups, 1), v.repeat(1, groups, 1), start, scale=scale)


@green("attention", profile="sdpa", mask="full")
def cubic_exponential(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *, scale: float
) -> Any:
    """The fast exponential itself, whatever processor this is."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(
        q, k, v, live, scale, TORCH_BLOCK, exp=lambda x: fast_exponential(x, CUBIC)
    )  # fmt: skip


# ---- fp32 throughout


def in_float32(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    scale: float,
    *,
    scores: torch.dtype | None = None,
    weights: torch.dtype | None = None,
) -> torch.Tensor:
    """Attention in fp32 whose scores or weights, divided already, go through another format."""
    heads = q.shape[1]
    s = q.transpose(0, 1) @ by_head(k, heads).transpose(1, 2) * scale
    s = s if scores is None else s.to(scores).float()
    s = s.masked_fill(~live, -torch.inf).masked_fill(~live.any(-1, keepdim=True), 0.0)
    p = torch.softmax(s, dim=-1)
    p = p if weights is None else p.to(weights).float()
    return (p @ by_head(v, heads)).transpose(0, 1).contiguous()


@red("attention", profile="float32", gate="stress", mask="causal")
def scores_in_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Scores are stored in bf16."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return in_float32(q, k, v, live, scale, scores=torch.bfloat16)


@red("attention", profile="float32", gate="stress", mask="causal")
def weights_in_fp16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Weights are stored in fp16."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return in_float32(q, k, v, live, scale, weights=torch.float16)


@red("attention", profile="float32", gate="shapes", mask="causal")
def operands_in_tf32(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """The matrix unit's default: eleven bits of each operand, the others cut."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    q, k, v = (
        (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32) for x in (q, k, v)
    )
    return in_float32(q, k, v, live, scale)


@red("attention", profile="float32", gate="shapes", mask="causal")
def cache_in_fp16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Keys and values have been stored in fp16."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return in_float32(q, k.half().float(), v.half().float(), live, scale)


@red("attention", profile="float32", gate="exact", mask="causal")
def stored_in_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """The result goes through bf16."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    return in_float32(q, k, v, live, scale).bfloat16().float()


@green("attention", profile="float32", mask="causal")
def divided_at_the_end(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Blocks of 256 keys with a running maximum; rows without a live key have equal scores."""
    live = live_keys(k.shape[0], start, position, None, None, None)
    none = ~live.any(-1, keepdim=True)
    heads, parts = q.shape[1], []
    for at in range(0, k.shape[0], BLOCK):
        here = slice(at, at + BLOCK)
        scores = q.transpose(0, 1) @ by_head(k, heads)[:, here].transpose(1, 2) * scale
        parts.append(
            (scores.masked_fill(none, 0.0), by_head(v, heads)[:, here], (live | none)[:, here])
        )
    return online(parts)[0].transpose(0, 1).contiguous()


# ---- legal variants


@green("attention", profile=("eager", "float32"), mask="causal")
def keys_in_reverse_order(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> Any:
    """Keys in reverse order: the sums run the other way."""
    live = live_keys(k.shape[0], start, position, None, None, None).flip(-1)
    return eager(q, k.flip(0), v.flip(0), live, scale)


@green("attention", profile=("flash", "sdpa"), mask="full")
def scaled_in_base_two(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, *,
    scale: float, profile: str,
) -> Any:  # fmt: skip
    """exp2 with the scale folded in; torch's exponential may be a better one."""
    live = live_keys(k.shape[0], start, None, None, None, None)
    return in_blocks(
        q, k, v, live, scale, keys_at_a_time(profile), exp=lambda x: torch.exp2(x * 1.4426950408889634)
    )  # fmt: skip


# ---- other people's kernels that are not what a profile says


@red("attention", profile="eager", gate="stress", mask="causal", requires=NEEDS)
def llama_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """transformers adds the lowest finite value: scores near 2^120 stay apart in an empty row, which is then no mean."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    live = live_keys(k.shape[0], start, position, None, None, None)
    return call(eager_attention_forward, q, k, v, live, scaling=scale)


@red("attention", profile="flash", gate="stress", mask="prefix")
def torch_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """torch's own on the CPU: its exp is good to 2^-13 and takes 512 keys at a time, and an overflowed dead score is NaN."""
    live = live_keys(k.shape[0], start, position, prefix, None, None)
    query, key, value = (x.transpose(0, 1)[None].contiguous() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=live[None, None], scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1).contiguous()
