"""The eager attention of transformers' models.

It adds the lowest finite value to the scores of dead keys, which masks neither a NaN among them nor, in an empty row,
differences of huge ones: the red control llama_eager shows it. What it computes else is the profile eager.
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
    eager: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    *,
    dead: float | None = None,
    **more: Any,
) -> torch.Tensor:
    """One sequence, with the additive mask that the models build: 0, or `dead`, by default the lowest finite value."""
    low = torch.finfo(q.dtype).min if dead is None else dead
    fill = torch.zeros(live.shape, dtype=q.dtype).masked_fill(~live, low)
    module = SimpleNamespace(
        num_key_value_groups=q.shape[1] // k.shape[1], training=False, head_dim=q.shape[-1]
    )
    query, key, value = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, _ = eager(module, query, key, value, fill[None, None], **more)
    return out[0].contiguous()  # type: ignore[no-any-return]


def masked_by_infinity(
    eager: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, live: torch.Tensor, **more: Any
) -> torch.Tensor:
    """With a mask that is ours: -inf where a key is dead. A query without a live key is made 0 and sees all, as equals."""
    none = ~live.any(-1)
    query = q.masked_fill(none[:, None, None], 0.0)
    return call(eager, query, k, v, live | none[:, None], dead=-torch.inf, **more)


@implementation(
    "attention", name="transformers.llama_eager", profile="eager", requires=NEEDS, capped="no"
)
def llama(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor,
    window: torch.Tensor | None = None,
    block: torch.Tensor | None = None,
    *,
    scale: float,
) -> torch.Tensor:
    """eager_attention_forward, which most models share word for word."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    live = live_keys(k.shape[0], start, position, None, window, block)
    return masked_by_infinity(eager_attention_forward, q, k, v, live, scaling=scale)


@implementation(
    "attention",
    name="transformers.gemma2_eager",
    profile="eager_capped",
    requires=NEEDS,
    mask="sliding",
    capped="yes",
)
def gemma2(
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
    """Gemma 2's, which caps its scores before the mask."""
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    live = live_keys(k.shape[0], start, position, None, window, None)
    return masked_by_infinity(
        eager_attention_forward, q, k, v, live, scaling=scale, softcap=float(cap)
    )
