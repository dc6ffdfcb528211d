"""Planted text pools: other rows, statistics in place of a row, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("text_pool", profile="moved", gate="exact")
def first_token(x: torch.Tensor) -> torch.Tensor:
    """The first row, as where a class token leads."""
    return x[:, 0].clone()


@red("text_pool", profile="moved", gate="exact")
def last_but_one(x: torch.Tensor) -> torch.Tensor:
    """Off by one."""
    return x[:, max(0, x.shape[1] - 2)].clone()


@red("text_pool", profile="moved", gate="exact")
def mean_of_the_tokens(x: torch.Tensor) -> torch.Tensor:
    """The mean of all rows."""
    return x.float().mean(1).to(x.dtype)


@red("text_pool", profile="moved", gate="exact")
def maximum_of_the_tokens(x: torch.Tensor) -> torch.Tensor:
    """The largest value of every column."""
    return x.amax(1)


@red("text_pool", profile="moved", gate="exact")
def previous_text(x: torch.Tensor) -> torch.Tensor:
    """The last row of the text before."""
    return x[:, -1].roll(1, 0)


@red("text_pool", profile="moved", gate="exact")
def largest_token(x: torch.Tensor) -> torch.Tensor:
    """The row at which the first column is largest, as CLIP looks for its highest token id."""
    return x[torch.arange(len(x)), x[:, :, 0].nan_to_num(0.0).argmax(1)]


@red("text_pool", profile="moved", gate="bounds")
def a_view(x: torch.Tensor) -> torch.Tensor:
    """No copy: it shares memory with the tower's rows."""
    return x[:, -1]


@green("text_pool", profile="moved")
def row_by_row(x: torch.Tensor) -> torch.Tensor:
    """One text after the other."""
    return torch.stack([text[-1] for text in x])


@green("text_pool", profile="moved")
def as_words(x: torch.Tensor) -> torch.Tensor:
    """Bits are moved as integers."""
    return x.contiguous().view(torch.int16)[:, -1].clone().view(x.dtype)
