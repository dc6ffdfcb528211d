"""Planted output heads: the wrong row, accumulators and stores, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.products import product
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("once", "fp32_logits")


def stored(total: torch.Tensor, x: torch.Tensor, profile: str) -> torch.Tensor:
    """The right store."""
    return total.float() if profile == "fp32_logits" else total.to(x.dtype)


def kept(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One row of each sequence; positions outside are moved to the nearest one."""
    at = position.long().clamp(0, x.shape[1] - 1)
    return x[torch.arange(x.shape[0]), at]


# -- the row


@red("lm_head", profile=BOTH, gate="exact")
def first_row(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Position 0."""
    return stored(product(kept(x, last * 0), weight, None), x, profile)


@red("lm_head", profile=BOTH, gate="exact")
def previous_row(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """`last` is taken for a length: one too early."""
    return stored(product(kept(x, last - 1), weight, None), x, profile)


@red("lm_head", profile=BOTH, gate="exact")
def next_row(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """One too late: the first position of the padding."""
    return stored(product(kept(x, last + 1), weight, None), x, profile)


@red("lm_head", profile=BOTH, gate="exact")
def end_of_the_padding(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """x[:, -1], whatever `last` says."""
    return stored(product(x[:, -1], weight, None), x, profile)


@red("lm_head", profile=BOTH, gate="exact")
def position_of_the_first_sequence(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """last[0] for all sequences."""
    return stored(product(kept(x, last[:1].expand_as(last)), weight, None), x, profile)


@red("lm_head", profile=BOTH, gate="exact")
def one_hot_product(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The row is selected by zeros and ones: what padding holds, NaN included, is read."""
    hot = torch.nn.functional.one_hot(last.long(), x.shape[1]).to(torch.float32)
    row = torch.einsum("bt,btk->bk", hot, x.float())
    return stored(product(row, weight, None), x, profile)


# -- the product and its store


@red("lm_head", profile=BOTH, gate="exact")
def accumulator_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The running sum is stored after every 16 columns."""
    row = kept(x, last)
    total = torch.zeros((x.shape[0], weight.shape[0]))
    for c in range(0, row.shape[-1], 16):
        part = product(row[:, c : c + 16], weight[:, c : c + 16], None)
        total = (total + part).bfloat16().float()
    return stored(total, x, profile)


@red("lm_head", profile="fp32_logits", gate="exact")
def logits_through_bf16(x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The head's dtype first, .float() after it."""
    return product(kept(x, last), weight, None).bfloat16().float()


@red("lm_head", profile="once", gate="exact")
def store_truncates(x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The upper half of the fp32 word."""
    total = product(kept(x, last), weight, None)
    return (total.view(torch.int32) & -(1 << 16)).view(torch.float32).bfloat16()


@red("lm_head", profile=BOTH, gate="exact")
def last_token_left_out(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The vocabulary's last row repeats the one before it."""
    index = torch.arange(weight.shape[0]).clamp(max=max(weight.shape[0] - 2, 0))
    return stored(product(kept(x, last), weight[index], None), x, profile)


# -- legal variants


@green("lm_head", profile=BOTH)
def all_positions_first(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Logits of every position, of which one is kept."""
    every = x.float() @ weight.float().T
    return stored(every[torch.arange(x.shape[0]), last.long()], x, profile)


@green("lm_head", profile=BOTH)
def vocabulary_in_pieces(
    x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Seven tokens at a time, columns from the last to the first."""
    row = kept(x, last).flip(-1).float()
    parts = [row @ w.flip(-1).float().T for w in weight.split(7)]
    return stored(torch.cat(parts, -1), x, profile)
