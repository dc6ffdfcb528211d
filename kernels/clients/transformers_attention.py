"""The eager attention of transformers' models.

Capped scores are bounded, so that the lowest finite value masks them whatever they are. Without a cap it does not: an
empty row whose scores are huge is no mean (see the red control llama_eager).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.attention import live_keys
from contract.kernels.clients.transformers_norms import NEEDS
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def call(
    eager: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, live: torch.Tensor, **more: Any
) -> torch.Tensor:
    """One sequence, with the additive mask that the models build: 0, or the lowest finite value."""
    fill = torch.zeros(live.shape, dtype=q.dtype).masked_fill(~live, torch.finfo(q.dtype).min)
    module = SimpleNamespace(
        num_key_value_groups=q.shape[1] // k.shape[1], training=False, head_dim=q.shape[-1]
    )
    query, key, value = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, _ = eager(module, query, key, value, fill[None, None], **more)
    return out[0].contiguous()  # type: ignore[no-any-return]


@implementation(
    "attention",
    name="transformers.gemma4.eager",
    profile="eager_capped",
    requires=NEEDS,
    mask="sliding",
    capped="yes",
)
def gemma4_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor,
    cap: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """Scores rounded twice and at each step of the cap, softmax in fp32, weights rounded."""
    from transformers.models.gemma4.modeling_gemma4 import eager_attention_forward

    live = live_keys(k.shape[0], start, position, None, window, None)
    return call(eager_attention_forward, q, k, v, live, scaling=scale, softcap=float(cap))
