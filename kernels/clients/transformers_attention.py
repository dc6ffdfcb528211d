"""The eager attention of transformers' models.

It adds the lowest finite value to the scores of dead keys, which masks neither a NaN among them nor, in an empty row,
differences of huge ones: the red control llama_eager shows it. What it computes else is the profile eager.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

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
