"""Attention of 8 heads of 256 over 1028 keys, PaliGemma's prompt, against torch's own."""

from __future__ import annotations

import torch
from run import best

from contract.kernels.attention import attention_eager, attention_sdpa, live_keys

HEADS, KEYS, D, PREFIX = 8, 1028, 256, 1024
PASSES = 12
#: The most that the contracted implementations may take, as multiples of torch's time.
SDPA, EAGER = 1.1, 1.2


def measure() -> list[tuple[str, float, float]]:
    """(name, ratio, minus the largest ratio allowed)."""
    made = torch.Generator().manual_seed(0)
    q = torch.randn(KEYS, HEADS, D, generator=made).bfloat16()
    k, v = (torch.randn(KEYS, 1, D, generator=made).bfloat16() for _ in range(2))
    start, prefix = torch.zeros(KEYS, dtype=torch.int32), torch.full((KEYS,), PREFIX).int()
    own = torch.arange(KEYS, dtype=torch.int32)
    rows, keys, values = (x.transpose(0, 1).contiguous() for x in (q, k, v))
    live = live_keys(KEYS, start, own, prefix, None, None)
    dead = torch.full((KEYS, KEYS), -torch.inf, dtype=q.dtype).triu(1)
    fused, ours, formula, eager = best(
        lambda: torch.nn.functional.scaled_dot_product_attention(
            rows[None], keys[None], values[None], attn_mask=live, scale=D**-0.5, enable_gqa=True
        ),
        lambda: attention_sdpa(q, k, v, start, own, prefix, scale=D**-0.5),
        lambda: eager_formula(rows, keys, values, dead),
        lambda: attention_eager(q, k, v, start, own, scale=D**-0.5),
        passes=PASSES,
    )
    return [
        ("sdpa attention, time in multiples of torch's", ours / fused, -SDPA),
        ("eager attention, time in multiples of its formula", eager / formula, -EAGER),
    ]


def eager_formula(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The formula as models spell it, with an additive mask.

    Products are taken in fp32 and rounded: without bf16 units torch's own bf16 product takes ten times as long.
    """
    scores = (q.float() @ k.transpose(1, 2).float()).bfloat16() * D**-0.5 + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).bfloat16()
    return (weights.float() @ v.float()).bfloat16().transpose(0, 1).contiguous()
