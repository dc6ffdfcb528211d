"""Planted probe attentions: other scales and roundings, tokens left out, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.map_pool import attended, map_pool_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def scores_of(scaled: Tensor, k: Tensor) -> Tensor:
    """Scores in fp32 of a probe in any format."""
    return (k.float() @ scaled.float()[:, :, None])[..., 0]


def rounded_softmax(scores: Tensor, like: Tensor) -> Tensor:
    """Weights in bf16 of scores that are rounded to it."""
    return torch.softmax(scores.to(like.dtype).float(), -1).to(like.dtype)


@red("map_pool", profile="each_step", gate="exact")
def scores_scaled(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """The scale is multiplied into the rounded scores, as in most attentions."""
    scores = scores_of(q, k).to(k.dtype) * scale
    return attended(rounded_softmax(scores, k), v)


@red("map_pool", profile="each_step", gate="exact")
def probe_not_rounded(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """q scale in fp32."""
    return attended(rounded_softmax(scores_of(q.float() * scale, k), k), v)


@red("map_pool", profile="each_step", gate="exact")
def weights_not_rounded(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """The values are weighted in fp32."""
    scores = scores_of(q * scale, k).to(k.dtype)
    weights = torch.softmax(scores.float(), -1)
    return (weights[:, :, None] @ v.float())[:, :, 0].to(v.dtype)


@red("map_pool", profile="each_step", gate="exact")
def divided_at_the_end(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """exp(s - max) is rounded, and the sum divides the weighted values."""
    scores = scores_of(q * scale, k).to(k.dtype).float()
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = (e.to(k.dtype).float()[:, :, None] @ v.float())[:, :, 0]
    return (out / e.sum(-1, keepdim=True)).to(v.dtype)


@red("map_pool", profile="each_step", gate="exact")
def softmax_in_bf16(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Differences, exponentials, their sum and the quotient are all rounded."""
    scores = scores_of(q * scale, k).to(k.dtype)
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = torch.zeros_like(e[..., :1])
    for one in e.split(1, -1):
        total = total + one
    return attended(e / total, v)


@red("map_pool", profile="each_step", gate="stress")
def maximum_not_taken_off(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """exp of a score of 89 is infinite, and infinite by infinite NaN."""
    e = torch.exp(scores_of(q * scale, k).to(k.dtype).float())
    return attended((e / e.sum(-1, keepdim=True)).to(k.dtype), v)


@red("map_pool", profile="each_step", gate="shapes")
def not_scaled(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """The probe meets the keys as it is."""
    return map_pool_torch(q, k, v, scale=1.0)


@red("map_pool", profile="each_step", gate="shapes")
def scaled_twice(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """1 / d, as if keys had taken their share too."""
    return map_pool_torch(q, k, v, scale=scale * scale)


@red("map_pool", profile="each_step", gate="shapes")
def mean_of_the_values(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Every token weighs the same."""
    return v.float().mean(2).to(v.dtype)


@red("map_pool", profile="each_step", gate="shapes")
def last_token_dropped(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """An odd number of tokens loses its last one."""
    even = max(1, k.shape[2] // 2 * 2)
    return map_pool_torch(q, k[:, :, :even], v[:, :, :even], scale=scale)


@red("map_pool", profile="each_step", gate="shapes")
def padded_with_zeros(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """A token of zeros is appended, whose score of 0 has a weight."""
    k, v = (torch.cat([x, torch.zeros_like(x[:, :, :1])], 2) for x in (k, v))
    return map_pool_torch(q, k, v, scale=scale)


@red("map_pool", profile="each_step", gate="shapes")
def heads_exchanged(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Each head of the probe meets the keys of its neighbour."""
    return map_pool_torch(q.roll(1, 0), k, v, scale=scale)


@green("map_pool", profile="each_step")
def in_float64(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Every unnamed step is kept wider."""
    scaled = (q.double() * scale).float().to(q.dtype).double()
    scores = (k.double() @ scaled[:, :, None])[..., 0].float().to(k.dtype)
    weights = torch.softmax(scores.double(), -1).float().to(k.dtype)
    return (weights.double()[:, :, None] @ v.double())[:, :, 0].float().to(v.dtype)


@green("map_pool", profile="each_step")
def tokens_reversed(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """The tokens from the last one on."""
    return map_pool_torch(q, k.flip(2), v.flip(2), scale=scale)


@green("map_pool", profile="each_step")
def times_the_reciprocal(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """exp(s - max) times one over the sum, which runs over blocks of 16 tokens."""
    scores = scores_of(q * scale, k).to(k.dtype).float()
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = torch.stack([part.sum(-1) for part in e.split(16, -1)]).sum(0)
    return attended((e * (1.0 / total)[..., None]).to(k.dtype), v)
