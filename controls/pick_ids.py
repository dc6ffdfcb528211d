"""Planted token picks: without a fallback, with one where none is due, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.pick_ids import pick_ids_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Picked = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("bf16_logits", "float32_logits")


@red("pick_ids", profile=BOTH, gate="exact")
def no_fallback(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """The pick stays, whatever the flag says."""
    return logits.argmax(-1).to(torch.int32), pick_ids_torch(logits, fallback)[1]


@red("pick_ids", profile=BOTH, gate="exact")
def fallback_is_zero(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """Token 0 where the row cannot be trusted."""
    return pick_ids_torch(logits, torch.zeros_like(fallback))


@red("pick_ids", profile=BOTH, gate="exact")
def fallback_of_16_bits(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """A fallback beyond 32,767 wraps."""
    return pick_ids_torch(logits, fallback.short())


@red("pick_ids", profile=BOTH, gate="exact")
def fallback_for_nan_only(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """Infinite logits are flagged, but picked."""
    nan = logits.isnan().any(-1)
    token = torch.where(nan, fallback.long(), logits.argmax(-1))
    return token.to(torch.int32), pick_ids_torch(logits, fallback)[1]


@red("pick_ids", profile=BOTH, gate="exact")
def fallback_for_infinity_only(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """NaN is flagged, but picked."""
    infinite = logits.amax(-1).isinf()
    token = torch.where(infinite, fallback.long(), logits.argmax(-1))
    return token.to(torch.int32), pick_ids_torch(logits, fallback)[1]


@red("pick_ids", profile=BOTH, gate="exact")
def fallback_beside_a_masked_token(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """A masked token is taken for a fault of its row."""
    wrong = ~logits.isfinite().all(-1)
    token = torch.where(wrong, fallback.long(), logits.argmax(-1))
    return token.to(torch.int32), wrong.to(torch.uint8)


@red("pick_ids", profile=BOTH, gate="exact")
def fallback_for_the_batch(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """One bad row sends all rows to the fallback."""
    token, flags = pick_ids_torch(logits, fallback)
    return torch.where(flags.amax() > 0, fallback, token), flags


@red("pick_ids", profile=BOTH, gate="exact")
def never_flagged(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """The fallback is there, the flag is not."""
    token, flags = pick_ids_torch(logits, fallback)
    return token, torch.zeros_like(flags)


@red("pick_ids", profile=BOTH, gate="exact")
def last_of_equals(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """A comparison with >= keeps the last of equal values."""
    token, flags = pick_ids_torch(logits.flip(-1), fallback)
    turned = logits.shape[-1] - 1 - token
    return torch.where(flags > 0, fallback, turned), flags


@red("pick_ids", profile=BOTH, gate="exact")
def token_in_bf16(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """The token travels in bf16, which holds no odd number above 256."""
    token, flags = pick_ids_torch(logits, fallback)
    return token.bfloat16().to(torch.int32), flags


@red("pick_ids", profile=BOTH, gate="exact")
def one_row_late(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """The token of the row before."""
    token, flags = pick_ids_torch(logits, fallback)
    return token.roll(1), flags


@green("pick_ids", profile=BOTH)
def scrubbed_first(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """Bad rows are replaced with a row that picks the fallback, then all are picked alike."""
    flags = pick_ids_torch(logits, fallback)[1]
    chosen = torch.where(torch.arange(logits.shape[-1]) == fallback, 1.0, 0.0).to(logits.dtype)
    return torch.where(flags[:, None] > 0, chosen, logits).argmax(-1).to(torch.int32), flags


@green("pick_ids", profile=BOTH)
def row_by_row(logits: torch.Tensor, fallback: torch.Tensor) -> Picked:
    """One row after the other."""
    parts = [pick_ids_torch(row[None], fallback) for row in logits]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
